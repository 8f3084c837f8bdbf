"""The native CUDA library: loading it, calling it, and its errors as exceptions."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from functools import cache
from pathlib import Path

from lamina.errors import CodedError

_BAD_ARGUMENT = 1
_LIBRARY = "liblamina_cuda.so"


class CudaError(CodedError, RuntimeError):
    """An error of CUDA, or of its absence; the message is one sentence that gives the cause."""


_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_SIGNATURES: dict[str, list[type]] = {
    "check_device": [],
    "workspace_bytes": [_POINTER, _INT, _POINTER],
    "plan": [_POINTER, _POINTER, _INT, _INT, _INT, _POINTER, _POINTER],
    "begin": [_POINTER] * 7,
    "finish": [_POINTER] * 10,
    "partial_of": [_POINTER, _POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER, _POINTER, _POINTER],
    "combine": [_POINTER, _INT, _POINTER, _POINTER, _POINTER, _POINTER],
    "allocate_managed": [ctypes.c_size_t, _POINTER],
    "free_managed": [_POINTER],
    "append": [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _LONG, _POINTER],
    "norm": [_POINTER, _POINTER, _LONG, _LONG, *[_POINTER] * 4, _LONG, _POINTER],
    "rotary": [_POINTER, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _LONG, _POINTER, _LONG, _POINTER],
    "gate": [_INT, _INT, _POINTER, _LONG, _POINTER, _LONG, _POINTER, _LONG, _LONG, _POINTER],
    "ring_create": [_POINTER, _INT, _POINTER],
    "channel_create": [_POINTER, _POINTER],
    "channel_attach": [_POINTER, _POINTER],
    "channel_share": [_POINTER, _POINTER],
    "channel_destroy": [_POINTER],
    "channel_send": [_POINTER, _POINTER, _INT, _POINTER],
    "channel_recv": [_POINTER, _POINTER, _INT, _POINTER],
    "channel_describe": [_POINTER, _POINTER],
    "channel_check": [_POINTER],
    "channel_abort": [_POINTER],
    "nic_create": [_POINTER, _POINTER],
    "nic_destroy": [_POINTER, _POINTER],
    "nic_poll": [_POINTER, _POINTER],
    "nic_check": [_POINTER],
    "nic_abort": [_POINTER],
}


@cache
def library() -> ctypes.CDLL:
    """Load $LAMINA_CUDA_LIBRARY, or the library built next to the other native code."""
    named = os.environ.get("LAMINA_CUDA_LIBRARY")
    native = importlib.util.find_spec("lamina._native")
    built = Path(native.origin).parent / _LIBRARY if native is not None and native.origin else Path(_LIBRARY)
    path = Path(named) if named else built
    try:
        if not path.exists():
            raise CudaError(
                "cuda-no-library",
                f"the CUDA kernels are not at {path}: build with nvcc, or set LAMINA_CUDA_LIBRARY",
            )
        loaded = ctypes.CDLL(str(path.absolute()))  # a bare name would be looked for in the system's folders
        loaded.lamina_cuda_message.restype = ctypes.c_char_p
        for name, types in _SIGNATURES.items():
            getattr(loaded, f"lamina_cuda_{name}").argtypes = types
    except (OSError, AttributeError) as error:  # no library at all, or another one
        raise CudaError(
            "cuda-no-library",
            f"{path} is no library of CUDA kernels ({error}): build with nvcc, or set LAMINA_CUDA_LIBRARY",
        ) from error
    return loaded


def call_status(name: str, *arguments: object) -> tuple[int, str]:
    """Call a function of the library; return its status, and a sentence if that is not 0."""
    passed = [ctypes.byref(a) if isinstance(a, ctypes.Structure) else a for a in arguments]
    status = int(getattr(library(), f"lamina_cuda_{name}")(*passed))
    return status, library().lamina_cuda_message().decode() if status else ""


def call(name: str, *arguments: object) -> None:
    """Call a function of the library; raise its error as a ValueError or a CudaError."""
    status, sentence = call_status(name, *arguments)
    if status:
        raise ValueError(sentence) if status == _BAD_ARGUMENT else CudaError("cuda-failed", sentence)
