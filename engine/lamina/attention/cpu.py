"""The CPU's attention worker on torch tensors, with the checks that bare addresses do not allow."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lamina._native import AttentionWorker, Slab
from lamina.attention.heads import AttentionLayer, Heads
from lamina.kv.stored import KvDtype


class TensorWorker(Heads):
    """A native AttentionWorker for tensors of one dtype and shape of heads; see help(AttentionWorker)."""

    device = torch.device("cpu")
    dtypes: ClassVar[dict[torch.dtype, str]] = {
        torch.float32: "float32",
        torch.bfloat16: "bfloat16",
        torch.float16: "float16",
    }

    def __init__(
        self,
        dtype: torch.dtype,
        heads: int,
        kv_heads: int,
        head_dim: int,
        latent: int = 0,
        *,
        threads: int = 0,
        isa: str = "",
        prefetch: str = "",
        kv_dtype: KvDtype = "auto",
    ) -> None:
        """`kv_dtype`: what layers hold; fp8 and int8 as tensors of int8."""
        super().__init__(dtype, heads, kv_heads, head_dim, latent)
        if kv_dtype != "auto":
            self.stored = torch.int8
        self.native = AttentionWorker(
            self.dtypes[dtype], heads, kv_heads, head_dim, threads, isa, latent, prefetch, kv_dtype
        )
        self._arena: list[Tensor] = []  # the native worker has only its address
        self._q: Tensor | None = None  # likewise, from begin() to finish()
        self._planned = 0

    def add_layer(self, layer: AttentionLayer) -> int:
        """Add the next layer; return its number."""
        k, v = layer.k, layer.v
        self.require_views(k, v)
        for each in layer.scales:
            assert each.dtype == torch.float32
            assert each.shape == k.shape[:2]
            assert (each.stride(0) * each.itemsize, each.stride(1)) == (k.stride(0), 1)
        self._arena += [k, v, *layer.scales]
        return self.native.add_layer(
            k.data_ptr(),
            v.data_ptr(),
            min(len(k), len(v)),
            k.stride(0),
            k.stride(1),
            layer.scale,
            layer.window,
            layer.softcap,
            None if layer.sinks is None else layer.sinks.contiguous().numpy(),
            layer.chunk,
            layer.space,
            *(each.data_ptr() for each in layer.scales),
        )

    def plan(
        self, slab: Slab, requests: NDArray[np.int64], rows: int | None = None, *, space: int = 0
    ) -> None:
        """Plan an iteration in each space: the requests whose tokens the following calls attend to.

        The batch is filled up to `rows` with requests that have no tokens and whose results are zero.
        """
        self.native.plan(slab, requests, space)
        self._planned = len(requests)
        self.requests = self._planned if rows is None else rows

    def plan_lists(self, offsets: NDArray[np.int64], slots: NDArray[np.int32], *, space: int = 0) -> None:
        """Plan from lists given directly: request i has slots[offsets[i]:offsets[i + 1]]."""
        self.native.plan_lists(offsets, slots, space)
        self.requests = self._planned = len(offsets) - 1

    def begin(self, layer: int, q: Tensor) -> None:
        """Begin to attend from q [requests, heads, head_dim] to the previous tokens, in the background."""
        self.check(self.requests, q)
        self.native.begin(layer, q.data_ptr())
        self._q = q

    def finish(self, layer: int, *kv: Tensor) -> Tensor:
        """Store the new tokens' k and v [requests, kv_heads, head_dim]; the output, of v's width.

        k alone with `latent`, whose values are part of it.
        """
        self.check(self.requests, None, *kv)
        out = torch.empty((self.requests, self.heads, self.value_dim), dtype=self.dtype)
        self.native.finish(layer, kv[0].data_ptr(), kv[-1].data_ptr(), out.data_ptr())
        if self._planned < self.requests:
            out[self._planned :] = 0
        self._q = None
        return out

    def run(self, layer: int, q: Tensor, *kv: Tensor) -> Tensor:
        """begin() and finish() in one go."""
        self.begin(layer, q)
        return self.finish(layer, *kv)

    def partial(self, layer: int, q: Tensor) -> tuple[Tensor, Tensor]:
        """Attend to all planned tokens; return output and log of the softmax's denominator, in float32."""
        self.check(self.requests, q)
        out = torch.empty((self.requests, self.heads, self.value_dim))
        lse = torch.empty((self.requests, self.heads))
        self.native.partial(layer, q.data_ptr(), out.data_ptr(), lse.data_ptr())
        return out, lse

    def append(self, layer: int, slots: NDArray[np.int32], *kv: Tensor) -> None:
        """Store k and v [len(slots), kv_heads, head_dim] in these slots, as a prefill does."""
        self.check(len(slots), None, *kv)
        self.native.append(layer, kv[0].data_ptr(), kv[-1].data_ptr(), slots)
