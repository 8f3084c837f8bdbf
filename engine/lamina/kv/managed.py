"""Tensors in CUDA managed memory, of which there may be more than the device has.

Not verified on hardware.
"""

from __future__ import annotations

import ctypes
import math

import torch

from lamina import cuda_library


class _Managed:
    """A stretch of managed memory, in the form in which torch takes over foreign memory."""

    def __init__(self, nbytes: int) -> None:
        self._address = ctypes.c_void_p()  # before the call, which may fail: there is then nothing to free
        cuda_library.call("allocate_managed", nbytes, ctypes.byref(self._address))
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (self._address.value, False),
            "version": 3,
        }

    def __del__(self) -> None:
        if self._address:
            cuda_library.call("free_managed", self._address)


def managed_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that the driver moves to the device when they are used, and away when others need the room.

    The driver counts its faults where only its profiler sees them, so nobody here does.
    """
    with torch.cuda.device(device):
        # The tensor keeps what it was made of alive, and that frees the memory.
        flat = torch.as_tensor(_Managed(math.prod(shape) * dtype.itemsize), device=device)
        return flat.zero_().view(dtype).view(shape)
