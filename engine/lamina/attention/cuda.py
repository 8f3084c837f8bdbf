"""The GPU's attention worker: the kernels of the CUDA library on torch tensors."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lamina import cuda_library, gpu
from lamina._native import Slab
from lamina.attention.heads import AttentionLayer, Heads

_PREVIOUS = 0
# Of the work for each block that a GPU runs at once, where it runs other kernels meanwhile.
SHARES_CONCURRENT = 4


def _structure(name: str, **fields: type) -> type[ctypes.Structure]:
    """Return a struct of decode.h."""
    return type(name, (ctypes.Structure,), {"_fields_": tuple(fields.items())})


_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float
_Attention = _structure(
    "_Attention",
    dtype=_INT,
    heads=_INT,
    kv_heads=_INT,
    head_dim=_INT,
    scale=_FLOAT,
    soft_cap=_FLOAT,
    latent=_INT,
    shares=_INT,
)
_Arena = _structure("_Arena", k=_POINTER, v=_POINTER, slot_stride=_LONG, head_stride=_LONG)
_Lists = _structure("_Lists", offsets=_POINTER, slots=_POINTER, batch=_INT)
_Partial = _structure("_Partial", out=_POINTER, lse=_POINTER)
_Workspace = _structure("_Workspace", memory=_POINTER, bytes=ctypes.c_size_t)


def _tensor(numbers: NDArray[np.int32] | NDArray[np.int64] | Tensor) -> Tensor:
    """Share memory where it may be written: torch warns of an array that cannot be written to."""
    return numbers if isinstance(numbers, Tensor) else torch.from_numpy(np.require(numbers, requirements="W"))


@dataclass
class _Layer:
    attention: ctypes.Structure
    arena: ctypes.Structure
    previous: Tensor  # begin()'s workspace
    sight: tuple[int, int]  # window, chunk
    space: int
    sinks: Tensor | None
    arena_views: tuple[Tensor, Tensor]  # the kernels have only addresses


class CudaAttentionWorker(Heads):
    """Decode attention of one model's heads over a KV arena in GPU memory: the same verbs as on the CPU.

    Each iteration: plan(), then for each layer begin() when the queries are there and finish() when the new
    tokens' keys and values are. Everything runs on torch's current stream and nothing waits for it.

    Buffers have fixed addresses. So begin() and finish() can be captured in a CUDA graph, and a plan() before
    each replay gives it other lists, of as many rows.
    """

    dtypes: ClassVar[dict[torch.dtype, int]] = gpu.DTYPES

    def __init__(
        self,
        dtype: torch.dtype,
        heads: int,
        kv_heads: int,
        head_dim: int,
        latent: int = 0,
        *,
        max_batch: int,
        max_tokens: Sequence[int],
        device: torch.device | str = "cuda",
        concurrent: bool = False,
        shared: bool = False,
    ) -> None:
        """Prepare for batches whose lists have at most `max_tokens` in each space.

        With `concurrent` what begin() starts runs on a second stream until finish(), next to what is launched
        in between. `shared`: others use the device.
        """
        super().__init__(dtype, heads, kv_heads, head_dim, latent)
        gpu.require()
        self.max_batch, self.max_tokens = max_batch, max_tokens
        self.device = gpu.tensors_on(device)
        self._side = gpu.SideStream(self.device) if concurrent else None
        self._layers: list[_Layer] = []
        self._q: Tensor | None = None  # from begin() to finish()
        # By space.
        self._offsets = [self._empty((max_batch + 1,), torch.int32) for _ in max_tokens]
        self._slots = [self._empty((max(most, 1),), torch.int32) for most in max_tokens]
        self._out = self._empty((max_batch, heads, self.value_dim), torch.float32)
        self._lse = self._empty((max_batch, heads), torch.float32)
        self._shares = SHARES_CONCURRENT if concurrent or shared else 1
        self._shape = _Attention(
            self.dtypes[dtype], heads, kv_heads, head_dim, 1.0, 0.0, latent, self._shares
        )
        needed = ctypes.c_size_t()
        with gpu.current(self.device):
            cuda_library.call("workspace_bytes", self._shape, max_batch, ctypes.byref(needed))
        self._workspace_bytes = needed.value
        self._all = gpu.workspace(needed.value, self.device)  # partial()'s
        # begin()'s, one for each space, window and chunk.
        self._previous: dict[tuple[int, int, int], Tensor] = {}

    def add_layer(self, layer: AttentionLayer) -> int:
        """Add the next layer; return its number."""
        k, v, sinks = layer.k, layer.v, layer.sinks
        self.require_views(k, v)
        assert not layer.scales, "kernels on GPUs read K and V in the model's dtype"
        assert sinks is None or (sinks.dtype == torch.float32 and sinks.shape == (self.heads,))
        assert k.device == v.device == self.device
        heads = self.heads, self.kv_heads, self.head_dim
        attention = _Attention(
            self.dtypes[self.dtype], *heads, layer.scale, layer.softcap, self.latent, self._shares
        )
        arena = _Arena(k.data_ptr(), v.data_ptr(), k.stride(0), k.stride(1))
        key = layer.space, layer.window, layer.chunk
        if key not in self._previous:
            self._previous[key] = gpu.workspace(self._workspace_bytes, self.device)
        self._layers.append(
            _Layer(
                attention,
                arena,
                self._previous[key],
                (layer.window, layer.chunk),
                layer.space,
                None if sinks is None else sinks.to(self.device).contiguous(),
                (k, v),
            )
        )
        return len(self._layers) - 1

    def plan(
        self, slab: Slab, requests: NDArray[np.int64], rows: int | None = None, *, space: int = 0
    ) -> None:
        """Plan an iteration in each space: the requests whose tokens, newest included, the following calls
        attend to.
        """
        self.plan_lists(*slab.lists(requests), rows, space=space)

    def plan_lists(
        self,
        offsets: NDArray[np.int64] | Tensor,
        slots: NDArray[np.int32] | Tensor,
        rows: int | None = None,
        *,
        space: int = 0,
    ) -> None:
        """Plan from lists given directly: request i has slots[offsets[i]:offsets[i + 1]].

        The batch is filled up to `rows` with requests that have no tokens and whose results are zero. Copies
        from the host, so it is no part of a captured graph.
        """
        given, listed = _tensor(offsets), _tensor(slots)
        rows = len(given) - 1 if rows is None else rows
        assert len(given) - 1 <= rows <= self.max_batch
        assert len(listed) <= self.max_tokens[space]
        ends = self._offsets[space]
        ends[: len(given)].copy_(gpu.staged(given, self.device), non_blocking=True)
        if rows >= len(given):
            ends[len(given) : rows + 1].copy_(ends[len(given) - 1].expand(rows + 1 - len(given)))
        self._slots[space][: len(listed)].copy_(gpu.staged(listed, self.device), non_blocking=True)
        self.requests = rows
        lists = self._lists(space)
        for (planned, *sight), workspace in self._previous.items():
            if planned == space:
                self._launch("plan", self._shape, lists, *sight, _PREVIOUS, self._workspace(workspace))

    def begin(self, layer: int, q: Tensor) -> None:
        """Begin to attend from q [requests, heads, head_dim] to the previous tokens."""
        assert self._q is None, "begin() again before finish()"
        self.check(self.requests, q)
        known = self._layers[layer]
        workspace, lists = self._workspace(known.previous), self._lists(known.space)
        partial = self._partial(self._out, self._lse)
        with self._side.running() if self._side else contextlib.nullcontext():
            self._launch("begin", known.attention, known.arena, lists, q.data_ptr(), workspace, partial)
        self._q = q  # until both streams are done with it

    def finish(self, layer: int, *kv: Tensor) -> Tensor:
        """Store the new tokens' k and v [requests, kv_heads, head_dim]; the output, of v's width.

        k alone with `latent`, whose values are part of it.
        """
        assert self._q is not None, "finish() before begin()"
        self.check(self.requests, None, *kv)
        if self._side:
            self._side.joined()
        known = self._layers[layer]
        out = self._empty((self.requests, self.heads, self.value_dim), self.dtype)
        q, k_at, v_at, out_at = (tensor.data_ptr() for tensor in (self._q, kv[0], kv[-1], out))
        sinks = None if known.sinks is None else known.sinks.data_ptr()
        partial = self._partial(self._out, self._lse)
        lists = self._lists(known.space)
        self._launch("finish", known.attention, known.arena, lists, q, k_at, v_at, sinks, partial, out_at)
        self._q = None
        return out

    def run(self, layer: int, q: Tensor, *kv: Tensor) -> Tensor:
        """begin() and finish() in one go."""
        self.begin(layer, q)
        return self.finish(layer, *kv)

    def partial(self, layer: int, q: Tensor) -> tuple[Tensor, Tensor]:
        """Attend to all planned tokens; return output and log of the softmax's denominator, in float32."""
        self.check(self.requests, q)
        known = self._layers[layer]
        out = self._empty((self.requests, self.heads, self.value_dim), torch.float32)
        lse = self._empty(q.shape[:2], torch.float32)
        self._launch(
            "partial_of",
            known.attention,
            known.arena,
            self._lists(known.space),
            *known.sight,
            q.data_ptr(),
            self._workspace(self._all),
            self._partial(out, lse),
        )
        return out, lse

    def combine(self, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the partial of two disjoint sets of tokens from the partials of each."""
        assert first[0].shape == second[0].shape == (len(first[0]), self.heads, self.value_dim)
        for tensor in (*first, *second):
            assert tensor.device == self.device
            assert tensor.is_contiguous()
            assert tensor.dtype == torch.float32
        result = torch.empty_like(first[0]), torch.empty_like(first[1])
        partials = [self._partial(*pair) for pair in (first, second, result)]
        self._launch("combine", self._shape, len(first[0]), *partials)
        return result

    def append(self, layer: int, slots: NDArray[np.int32] | Tensor, *kv: Tensor) -> None:
        """Store k and v [len(slots), kv_heads, head_dim] in these slots, as a prefill does."""
        where = gpu.put(_tensor(slots).to(torch.int32), self.device)
        self.check(len(where), None, *kv)
        known = self._layers[layer]
        k_at, v_at, where_at = kv[0].data_ptr(), kv[-1].data_ptr(), where.data_ptr()
        self._launch("append", known.attention, known.arena, k_at, v_at, where_at, len(where))

    def _launch(self, name: str, *arguments: object) -> None:
        """Call a function that puts work on the current stream."""
        gpu.launch(name, self.device, *arguments)

    def _lists(self, space: int) -> ctypes.Structure:
        return _Lists(self._offsets[space].data_ptr(), self._slots[space].data_ptr(), self.requests)

    def _workspace(self, memory: Tensor) -> ctypes.Structure:
        return _Workspace(memory.data_ptr(), memory.numel())

    def _partial(self, out: Tensor, lse: Tensor) -> ctypes.Structure:
        return _Partial(out.data_ptr(), lse.data_ptr())

    def _empty(self, shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)
