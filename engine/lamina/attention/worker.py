"""The attention worker on torch tensors, with the checks that bare addresses do not allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lamina._native import AttentionWorker, Slab


class Heads:
    """Heads of one shape and dtype, whose tensors are on one kind of device."""

    device_type: ClassVar[str]
    dtypes: ClassVar[Mapping[torch.dtype, object]]  # by torch's name the native one

    def __init__(self, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int) -> None:
        if dtype not in self.dtypes:
            raise ValueError(f"dtype is {dtype} but must be one of {', '.join(map(str, self.dtypes))}")
        self.dtype = dtype
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.requests = 0

    def require_views(self, k: Tensor, v: Tensor) -> None:
        """A layer's, both [slots, kv_heads, head_dim], of the same strides, a head's dimensions adjacent."""
        assert k.dtype == v.dtype == self.dtype
        assert k.shape[1:] == v.shape[1:] == (self.kv_heads, self.head_dim)
        assert k.stride() == v.stride()
        assert k.stride(2) == 1

    def check(self, rows: int, q: Tensor | None = None, *kv: Tensor) -> None:
        """A q [rows, heads, head_dim] and some k and v [rows, kv_heads, head_dim], all contiguous."""
        for tensor, heads in [(q, self.heads), *((one, self.kv_heads) for one in kv)]:
            if tensor is not None:
                assert tensor.dtype == self.dtype
                assert tensor.shape == (rows, heads, self.head_dim)
                assert tensor.is_contiguous()
                assert tensor.device.type == self.device_type


class TensorWorker(Heads):
    """A native AttentionWorker for tensors of one dtype and shape of heads; see help(AttentionWorker)."""

    device_type = "cpu"
    dtypes: ClassVar[dict[torch.dtype, str]] = {
        torch.float32: "float32",
        torch.bfloat16: "bfloat16",
        torch.float16: "float16",
    }

    def __init__(
        self, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, threads: int = 0, isa: str = ""
    ) -> None:
        super().__init__(dtype, heads, kv_heads, head_dim)
        self.native = AttentionWorker(self.dtypes[dtype], heads, kv_heads, head_dim, threads, isa)
        self._kept: list[Tensor] = []  # the arena; the worker knows only its address
        self._q: Tensor | None = None  # likewise, from begin() to finish()

    def add_layer(self, k: Tensor, v: Tensor, *, scale: float, window: int = 0, softcap: float = 0.0) -> int:
        """The next layer's keys and values: views [slots, kv_heads, head_dim] with the same strides."""
        self.require_views(k, v)
        self._kept += [k, v]
        slots = min(len(k), len(v))
        return self.native.add_layer(
            k.data_ptr(), v.data_ptr(), slots, k.stride(0), k.stride(1), scale, window, softcap
        )

    def plan(self, slab: Slab, requests: NDArray[np.int64]) -> None:
        """Once an iteration: the requests whose tokens the following calls attend to."""
        self.native.plan(slab, requests)
        self.requests = len(requests)

    def plan_lists(self, offsets: NDArray[np.int64], slots: NDArray[np.int32]) -> None:
        """As plan(), of lists given directly: request i has slots[offsets[i]:offsets[i + 1]]."""
        self.native.plan_lists(offsets, slots)
        self.requests = len(offsets) - 1

    def begin(self, layer: int, q: Tensor) -> None:
        """Begin to attend from q [requests, heads, head_dim] to the previous tokens, in the background."""
        self.check(self.requests, q)
        self.native.begin(layer, q.data_ptr())
        self._q = q

    def finish(self, layer: int, k: Tensor, v: Tensor) -> Tensor:
        """Store the new tokens' k and v [requests, kv_heads, head_dim]; the output, shaped as q was."""
        self.check(self.requests, None, k, v)
        out = torch.empty((self.requests, self.heads, self.head_dim), dtype=self.dtype)
        self.native.finish(layer, k.data_ptr(), v.data_ptr(), out.data_ptr())
        self._q = None
        return out

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """begin() and finish() in one go."""
        self.begin(layer, q)
        return self.finish(layer, k, v)

    def partial(self, layer: int, q: Tensor) -> tuple[Tensor, Tensor]:
        """Over all planned tokens: the output and the log of the softmax's denominator, both float32."""
        self.check(self.requests, q)
        out = torch.empty((self.requests, self.heads, self.head_dim))
        lse = torch.empty((self.requests, self.heads))
        self.native.partial(layer, q.data_ptr(), out.data_ptr(), lse.data_ptr())
        return out, lse

    def append(self, layer: int, k: Tensor, v: Tensor, slots: NDArray[np.int32]) -> None:
        """Store k and v [len(slots), kv_heads, head_dim] in these slots, as a prefill does."""
        self.check(len(slots), None, k, v)
        self.native.append(layer, k.data_ptr(), v.data_ptr(), slots)
