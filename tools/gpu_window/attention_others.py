"""Decode attention on a GPU as others do it: torch, and FlashAttention and FlashInfer if installed.

Of these, FlashAttention and FlashInfer are not verified on hardware.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

PAGE = 16
WORKSPACE_BYTES = 128 << 20  # as FlashInfer recommends
TENSOR_CORES_FROM = 4  # query heads that share a KV head, for FlashInfer


@dataclass(frozen=True)
class Tensors:
    """The inputs of one step in one layer, generated on first use."""

    batch: int
    context: int
    heads: int
    kv_heads: int
    head_dim: int

    @cached_property
    def q(self) -> Tensor:
        return self._drawn(self.batch, self.heads, self.head_dim)

    @cached_property
    def by_heads(self) -> tuple[Tensor, Tensor]:
        """K and V, the tokens of a head one after the other, as torch's ways want them."""
        sizes = self.batch, self.kv_heads, self.context, self.head_dim
        return self._drawn(*sizes), self._drawn(*sizes)

    @cached_property
    def by_tokens(self) -> tuple[Tensor, Tensor]:
        """K and V, the heads of a token one after the other, as others want them."""
        sizes = self.batch, self.context, self.kv_heads, self.head_dim
        return self._drawn(*sizes), self._drawn(*sizes)

    def _drawn(self, *sizes: int) -> Tensor:
        import torch

        return torch.randn(sizes, device="cuda", dtype=torch.bfloat16)


def _sdpa(of: Tensors) -> Callable[[], object]:
    from torch.nn.functional import scaled_dot_product_attention

    q, (k, v) = of.q[:, :, None], of.by_heads
    return lambda: scaled_dot_product_attention(q, k, v, enable_gqa=of.heads != of.kv_heads)


def _flex(of: Tensors) -> Callable[[], object]:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    call: Any = torch.compile(flex_attention, dynamic=False)
    q, (k, v) = of.q[:, :, None], of.by_heads
    return lambda: call(q, k, v, enable_gqa=of.heads != of.kv_heads)


def _flash_attn(of: Tensors) -> Callable[[], object]:
    import torch

    attend = import_module("flash_attn").flash_attn_with_kvcache
    q, (k, v) = of.q[:, None], of.by_tokens
    lengths = torch.full((of.batch,), of.context, dtype=torch.int32, device="cuda")
    return lambda: attend(q, k, v, cache_seqlens=lengths, causal=True)


def _flashinfer(of: Tensors) -> Callable[[], object]:
    """Attend over pages of a size that servers use. It compiles its kernels when they are first called."""
    import torch

    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    grouped = of.heads // of.kv_heads >= TENSOR_CORES_FROM
    wrapper = import_module("flashinfer").BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_tensor_cores=grouped
    )
    pages = of.context // PAGE
    wrapper.plan(
        torch.arange(of.batch + 1, dtype=torch.int32, device="cuda") * pages,
        torch.arange(of.batch * pages, dtype=torch.int32, device="cuda"),
        torch.full((of.batch,), PAGE, dtype=torch.int32, device="cuda"),
        of.heads,
        of.kv_heads,
        of.head_dim,
        PAGE,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )
    kv = tuple(each.view(-1, PAGE, of.kv_heads, of.head_dim) for each in of.by_tokens)
    return lambda: wrapper.run(of.q, kv)


OTHERS: Mapping[str, Callable[[Tensors], Callable[[], object]]] = {
    "sdpa": _sdpa,
    "flex": _flex,
    "flash-attn": _flash_attn,
    "flashinfer": _flashinfer,
}
_MODULES = {"flash-attn": "flash_attn", "flashinfer": "flashinfer"}


def installed(name: str) -> bool:
    """Return whether this implementation is installed; torch's own are."""
    return name not in _MODULES or importlib.util.find_spec(_MODULES[name]) is not None
