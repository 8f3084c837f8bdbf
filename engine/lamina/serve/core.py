"""A model cut at its attention operators, its attention worker and its KV arena: all but the requests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lamina import host_memory
from lamina.attention.cuda import CudaAttentionWorker, require_device
from lamina.attention.worker import TensorWorker
from lamina.convert import Conversion, convert
from lamina.kv import Arena, ArenaShape
from lamina.model import Prefill, load_original
from lamina.pipeline import SerialPipeline, Spent
from lamina.serve.options import CoreOptions, EngineError

# Of the memory nobody uses, what an arena takes when its size is not said.
SHARE_OF_FREE_MEMORY = 0.25


class Core:
    """Runs prompts and iterations of a batch. Knows sequences by their names in the arena."""

    def __init__(self, model: Any, options: CoreOptions, *, max_sequences: int) -> None:
        if options.place.type != "cpu":
            require_device()
        self.conversion = convert(model, dtype=options.dtype, rope=options.rope)
        self.arena = _arena(self.conversion, options, max_sequences * self.conversion.max_positions)
        original = _original(model, self.conversion, options)
        self.slices = self.conversion.bind(original, backend=options.backend, device=options.device)
        self.attention = _attention(self.conversion, self.arena, options, max_sequences)
        self._pipeline = SerialPipeline(self.slices, self.attention, overlap=options.overlap)
        self._prefill = None if options.decode_only else Prefill(original)
        if options.decode_only:
            self.arena.fill()

    def begin(self, name: int, tokens: NDArray[np.int64]) -> None:
        """Give a new sequence the KV of all its tokens but the last, which its first iteration adds."""
        self._prompt(name, tokens, shared=0)

    def branch(self, parent: int, name: int, shared: int, tokens: NDArray[np.int64]) -> None:
        """A new sequence that shares the first `shared` tokens of another; the rest is its own."""
        self.arena.fork(parent, name, shared)
        self._prompt(name, tokens, shared=shared)

    def _prompt(self, name: int, tokens: NDArray[np.int64], shared: int) -> None:
        slots = self.arena.allocate(name, len(tokens) - 1 - shared)
        if self._prefill is None or not slots.size:
            return
        for layer, keys, values in self._prefill.layers(tokens[:-1].tolist()):
            self.arena.write(layer, slots, keys[shared:], values[shared:])

    def iterate(
        self, names: NDArray[np.int64], tokens: NDArray[np.int64], positions: NDArray[np.int64], spent: Spent
    ) -> torch.Tensor:
        """One iteration of a batch: logits [B, vocab]."""
        self.arena.extend(names)
        if self.arena.pager:
            lists = [self.arena.slab.indices(int(name)) for name in names]
            offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
            self.attention.plan_lists(offsets, self.arena.pager.fetch(np.concatenate(lists)))
        else:
            self.attention.plan(self.arena.slab, names)
        device = self.arena.storage.device
        here = torch.from_numpy(tokens).to(device), torch.from_numpy(positions).to(device)
        return self._pipeline.run(*here, spent)


def _arena(conversion: Conversion, options: CoreOptions, most_tokens: int) -> Arena:
    attentions = conversion.attentions
    first = attentions[0]
    if any((op.kv_heads, op.head_dim) != (first.kv_heads, first.head_dim) for op in attentions):
        raise EngineError(
            "the model's layers have different KV heads or head dimensions, which one arena cannot hold"
        )
    shape = ArenaShape(len(attentions), first.kv_heads, first.head_dim, conversion.dtype)
    tokens = _kv_tokens(shape, options, most_tokens)
    return Arena(shape, tokens, overcommit=options.overcommit, device=options.device)


def _kv_tokens(shape: ArenaShape, options: CoreOptions, most_tokens: int) -> int:
    if options.kv_tokens is not None:
        return options.kv_tokens
    if options.kv_bytes is not None:
        tokens = shape.tokens_in(options.kv_bytes)
        if tokens < 1:
            raise EngineError(
                f"{options.kv_bytes:,} bytes of KV memory hold no token of {shape.token_bytes:,}: give more"
            )
        return tokens
    return min(most_tokens, shape.tokens_in(int(_free_bytes(options.place) * SHARE_OF_FREE_MEMORY)))


def _free_bytes(place: torch.device) -> int:
    return host_memory.free_bytes() if place.type == "cpu" else int(torch.cuda.mem_get_info(place)[0])


def _original(model: Any, conversion: Conversion, options: CoreOptions) -> Any:
    """The model object itself, or the one that the folder or config describes."""
    if isinstance(model, torch.nn.Module):
        if model.dtype != conversion.dtype:
            raise EngineError(
                f"the model is {model.dtype} and {conversion.dtype} was asked for: convert it first"
            )
        place = next(model.parameters()).device
        if place.type != options.place.type:
            raise EngineError(f"the model is on {place} and the engine on {options.device}: move one")
        return model
    folder = Path(model) if isinstance(model, str | os.PathLike) else None
    if folder and not folder.is_dir():
        folder = None
    loaded = load_original(conversion.config, folder, conversion.dtype, options.load_format)
    return loaded.to(options.device)


def _attention(
    conversion: Conversion, arena: Arena, options: CoreOptions, max_sequences: int
) -> TensorWorker | CudaAttentionWorker:
    first = conversion.attentions[0]
    heads = (conversion.dtype, first.heads, first.kv_heads, first.head_dim)
    worker: TensorWorker | CudaAttentionWorker
    if options.place.type == "cpu":
        worker = TensorWorker(*heads, threads=options.threads)
    else:
        # Sequences that share slots list them each for itself.
        listed = max_sequences * min(conversion.max_positions, arena.capacity)
        worker = CudaAttentionWorker(
            *heads, max_batch=max_sequences, max_tokens=listed, device=options.device
        )
    for op in conversion.attentions:
        worker.add_layer(
            arena.keys(op.layer), arena.values(op.layer), scale=op.scale, window=op.window, softcap=op.softcap
        )
    return worker
