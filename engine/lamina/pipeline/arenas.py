"""Sizes of the KV arenas: as given, or a share of free memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lamina import gpu, host_memory
from lamina.attention.cpu import TensorWorker
from lamina.attention.cuda import CudaAttentionWorker
from lamina.attention.emulated import EmulatedAttention
from lamina.attention.heads import AttentionLayer
from lamina.kv import Arena, ArenaShape
from lamina.kv.stored import KvDtype
from lamina.operators import Attended
from lamina.pipeline.options import CoreOptions, EngineError, ModelFacts

if TYPE_CHECKING:
    from lamina.convert import Conversion

# Default size of arenas as a share of free memory: others use the host's, only weights a GPU's.
SHARE_OF_FREE_MEMORY = 0.25
SHARE_OF_FREE_GPU = 0.9
ALL_HEADS = slice(None)
AnyWorker: TypeAlias = TensorWorker | CudaAttentionWorker | EmulatedAttention
# Limits of the GPU kernels: see attention/cuda/decode.h.
HEAD_DIM_STEP, MOST_HEAD_DIM, MOST_LATENT_DIM = 16, 256, 576


def arena_shape(
    model: Conversion | Attended, kv_heads: int | None = None, kv_dtype: KvDtype = "auto"
) -> ArenaShape:
    """Return the shape of an arena for all KV heads, or for `kv_heads` of them."""
    attentions = model.attentions
    first = attentions[0]
    if len({(op.kv_heads, op.head_dim, op.latent) for op in attentions}) > 1:
        raise EngineError(
            "model-layers-differ", "an arena holds layers with the same KV heads and head dimension only"
        )
    heads = kv_heads or first.kv_heads
    sights = tuple(op.sight for op in attentions)
    sizes = len(attentions), heads, first.head_dim
    return ArenaShape(*sizes, model.dtype, first.latent, sights, kv_dtype)


def arena_tokens(
    shape: ArenaShape, facts: ModelFacts, options: CoreOptions, max_sequences: int, room: int, pools: int = 1
) -> int:
    """Return the tokens that each of the pools holds; `shape` covers all arenas of a pool.

    With no size given they fill the `room`, together with the recurrent states of `max_sequences` sequences.
    """
    if options.kv_tokens is not None:
        return options.kv_tokens // pools
    most = max_sequences * facts.max_positions
    if options.kv_bytes is not None:
        if options.kv_bytes < shape.token_bytes:
            raise EngineError(
                "engine-kv-too-small", f"kv_bytes is below the {shape.token_bytes:,} of a token"
            )
        return shape.tokens_in(options.kv_bytes // pools, max_sequences, most)
    require_room(facts, max_sequences, room - shape.token_bytes)
    left = room - max_sequences * facts.state_bytes
    return min(most // pools, shape.tokens_in(left // pools, max_sequences, most))


def room_for_arenas(free: int, weights: int, *, on_gpu: bool) -> int:
    """Return a device's memory for arenas; `weights` are the bytes of weights still to be loaded there."""
    return max(int((free - weights) * SHARE_OF_FREE_GPU), 0) if on_gpu else int(free * SHARE_OF_FREE_MEMORY)


def require_room(facts: ModelFacts, max_sequences: int, room: int) -> None:
    """Raise EngineError unless the recurrent states of this many sequences fit; most models have none."""
    needed = max_sequences * facts.state_bytes
    if facts.state_bytes and needed > room:
        fit = room // facts.state_bytes
        do = f"max_sequences of at most {fit:,}" if fit > 0 else "a smaller model or fewer KV tokens"
        raise EngineError(
            "engine-states-too-large",
            f"recurrent layers keep {facts.state_bytes:,} bytes of a sequence, {needed / 1e9:,.3g} GB of "
            f"{max_sequences:,}, and next to the KV {max(room, 0) / 1e9:,.3g} GB are free: take {do}",
        )


def worker_over(
    arena: Arena,
    attended: Attended,
    kv_heads: slice = ALL_HEADS,
    *,
    heads: int | None = None,
    rows: int,
    longest: int,
    device: torch.device | str = "cpu",
    threads: int = 0,
    concurrent: bool = False,
    shared: bool = False,
) -> AnyWorker:
    """Return a worker that attends for so many heads, or all, in batches of bounded size and length.

    On a GPU it may run `concurrent` with what is launched meanwhile, and its device may be `shared` with
    other workers. On CPUs its threads always run concurrently.
    """
    if attended.emulated:
        own_heads = heads or arena.shape.kv_heads
        return EmulatedAttention(attended.emulated, own_heads, own_heads / arena.shape.kv_heads)
    first = attended.attentions[0]
    here = len(range(arena.shape.kv_heads)[kv_heads])
    shape = attended.dtype, heads or first.heads, here, first.head_dim, first.latent
    worker: TensorWorker | CudaAttentionWorker
    if gpu.is_gpu(device):
        # Sequences that share slots list them each for itself.
        most = min(longest, arena.capacity)
        listed = [rows * min(most, sight.most or most) for sight in arena.shape.spaces]
        worker = CudaAttentionWorker(
            *shape, max_batch=rows, max_tokens=listed, device=device, concurrent=concurrent, shared=shared
        )
    else:
        worker = TensorWorker(*shape, threads=threads, kv_dtype=arena.shape.kv_dtype)
    attend_over(worker, arena, attended, kv_heads)
    return worker


def require_heads_for_gpu(facts: ModelFacts) -> None:
    """Raise EngineError if the GPU kernels do not support the model's head dimension."""
    most = MOST_LATENT_DIM if facts.latent else MOST_HEAD_DIM
    if facts.head_dim % HEAD_DIM_STEP or facts.head_dim > most:
        raise EngineError(
            "engine-gpu-heads",
            f"attention on a GPU takes heads of {HEAD_DIM_STEP} to {most} numbers, a multiple of "
            f"{HEAD_DIM_STEP}, and this model's have {facts.head_dim}: put attention on CPUs",
        )


def attend_over(
    worker: TensorWorker | CudaAttentionWorker,
    arena: Arena,
    attended: Attended,
    kv_heads: slice = ALL_HEADS,
) -> None:
    """Add every layer of the arena, or `kv_heads` of it, to a worker."""
    for op, sinks in zip(attended.attentions, attended.sinks, strict=True):
        keys, values = arena.keys(op.layer)[:, kv_heads], arena.values(op.layer)[:, kv_heads]
        scales = tuple(one[:, kv_heads] for one in arena.scales(op.layer))
        space = arena.space_of(op.layer)
        worker.add_layer(
            AttentionLayer(
                keys, values, op.scale, op.window, op.softcap, sinks, op.chunk, space=space, scales=scales
            )
        )


def plan(
    parts: Iterable[tuple[AnyWorker, slice]],
    arena: Arena,
    names: NDArray[np.int64],
    batch: int = 0,
    *,
    filled: int | None = None,
) -> None:
    """Plan an iteration: the sequences that each worker attends to, in every space.

    Without pages, rows can be padded to `filled` with empty ones.
    """
    parts = list(parts)
    for number, space in enumerate(arena.spaces):
        if not space.pager:
            for worker, rows in parts:
                worker.plan(space.slab, names[rows], filled, space=number)
            continue
        # All at once, so that fetching for one part does not move pages another one reads.
        offsets, slots = space.slab.lists(names)
        slots = space.pager.fetch(slots, batch)
        for worker, rows in parts:
            ends = offsets[rows.start : rows.stop + 1]
            worker.plan_lists(ends - ends[0], slots[ends[0] : ends[-1]], space=number)


def free_bytes(place: torch.device) -> int:
    return host_memory.free_bytes() if place.type == "cpu" else int(torch.cuda.mem_get_info(place)[0])
