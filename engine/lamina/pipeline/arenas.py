"""How large the KV arenas are: as given, or a share of free memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lamina import host_memory
from lamina.attention.worker import CudaAttentionWorker, TensorWorker
from lamina.kv import Arena, ArenaShape
from lamina.operators import Attended
from lamina.pipeline.options import CoreOptions, EngineError

if TYPE_CHECKING:
    from lamina.convert import Conversion

# Of free memory, what arenas take when their size is not given.
SHARE_OF_FREE_MEMORY = 0.25
ALL_HEADS = slice(None)


def arena_shape(model: Conversion | Attended, kv_heads: int | None = None) -> ArenaShape:
    """What a token takes, of all KV heads or so many of them."""
    attentions = model.attentions
    first = attentions[0]
    if len({(op.kv_heads, op.head_dim, op.latent) for op in attentions}) > 1:
        raise EngineError(
            "model-layers-differ", "an arena holds layers with the same KV heads and head dimension only"
        )
    heads = kv_heads or first.kv_heads
    return ArenaShape(len(attentions), heads, first.head_dim, model.dtype, first.latent)


def arena_tokens(shape: ArenaShape, options: CoreOptions, most_tokens: int) -> int:
    """Tokens that all arenas hold together; `shape` is that of a token with all its heads."""
    if options.kv_tokens is not None:
        return options.kv_tokens
    if options.kv_bytes is not None:
        tokens = shape.tokens_in(options.kv_bytes)
        if tokens < 1:
            raise EngineError(
                "engine-kv-too-small", f"kv_bytes is below the {shape.token_bytes:,} of a token"
            )
        return tokens
    return min(most_tokens, shape.tokens_in(int(_free_bytes(options.place) * SHARE_OF_FREE_MEMORY)))


def attend_over(
    worker: TensorWorker | CudaAttentionWorker,
    arena: Arena,
    attended: Attended,
    kv_heads: slice = ALL_HEADS,
    heads: slice = ALL_HEADS,
) -> None:
    """Give a worker every layer of the arena, or some KV heads of it, which are these heads' of the model."""
    attentions = attended.attentions
    for op, sinks in zip(attentions, attended.sinks_of(attentions, heads), strict=True):
        keys, values = arena.keys(op.layer)[:, kv_heads], arena.values(op.layer)[:, kv_heads]
        worker.add_layer(
            keys,
            values,
            scale=op.scale,
            window=op.window,
            softcap=op.softcap,
            sinks=sinks,
            chunk=op.chunk,
        )


def _free_bytes(place: torch.device) -> int:
    return host_memory.free_bytes() if place.type == "cpu" else int(torch.cuda.mem_get_info(place)[0])
