"""Conversion of a model into slices."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from lamina.convert import disk_cache
from lamina.convert.constants import BoundConstants
from lamina.convert.errors import ConversionError, named
from lamina.convert.program import Name
from lamina.convert.sharding import Sharded, shard
from lamina.convert.sliced import SlicedModel
from lamina.convert.slices import tensors_by_name
from lamina.convert.source import Source, open_source
from lamina.operators import Absorb, Absorption, Attended, Experts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Building and tracing change global state: torch's default dtype, fx's options, a logger.
_lock = threading.Lock()
# Conversions in memory: tracing takes a second for a small model and ten for 80 layers.
_MOST_CACHED = 32


@dataclass(frozen=True)
class Conversion(SlicedModel):
    """A model cut at its attention operators: n operators, n + 1 slices, no weights."""

    vocab_size: int
    max_positions: int
    dtype: torch.dtype
    rope: str
    eos_token_ids: tuple[int, ...]
    config: Any = field(repr=False)
    known: bool = field(default=False, repr=False)  # taken from a cache, not traced

    def sharded(self, degree: int, experts: Experts = "tp") -> Sharded:
        """Return the slices for `degree` ranks that split every layer's work and weights; cached.

        With `experts` "tp" each rank has a share of every expert, with "ep" it has some of the experts.
        """
        if (degree, experts) not in self._sharded:
            self._sharded[degree, experts] = shard(self, degree, experts)
        return self._sharded[degree, experts]

    def attended(self, tensors: Mapping[str, Tensor] | PreTrainedModel) -> Attended:
        """Return the attention workers' part: operators, sinks and absorbed weights from `tensors`."""
        constants = BoundConstants(self.constants, tensors_by_name(tensors), torch.device("cpu"))
        sinks = (constants[Name(op.sinks)].float() if op.sinks else None for op in self.attentions)
        absorptions = (
            Absorption(constants[Name(op.to_keys)], constants[Name(op.to_values)])
            for op in self.attentions
            if op.absorbs
        )
        return Attended(self.attentions, self.dtype, tuple(sinks), tuple(absorptions))

    @cached_property
    def _sharded(self) -> dict[tuple[int, Experts], Sharded]:
        return {}


def convert(
    model_or_path: object,
    dtype: torch.dtype | str | None = None,
    rope: str = "carry",
    absorb: Absorb = "model",
    *,
    keep: bool = True,
) -> Conversion:
    """Cut a Hugging Face causal language model into slices; a ConversionError gives the reason why not.

    `model_or_path` is a model folder, a config.json, a transformers config or a transformers model. Without
    `dtype` the config's (or the model's) is used. With `rope` "carry", RoPE tables are computed once and
    carried from slice to slice; with "recompute", every slice computes them from positions. With `absorb`
    "attention", attention workers multiply queries and outputs of latent KV. An
    architecture that was converted before is not traced again, also in another process: conversions are
    cached on disk unless `keep` is False. Threads that convert at the same time wait for each other.
    """
    if rope not in ("carry", "recompute"):
        raise ConversionError(
            "convert-rope-mode", f"there is no rope mode {rope!r}; choose carry or recompute"
        )
    if absorb not in get_args(Absorb):
        raise ConversionError(
            "convert-absorb-unknown", f"there is no absorb {absorb!r}; choose model or attention"
        )
    source = open_source(model_or_path, dtype)
    with named(source.label), _lock:
        cut, known = _cut(source, rope, absorb, keep=keep)
        if absorb == "attention" and not any(op.absorbs for op in cut.attentions):
            raise ConversionError(
                "convert-absorb-unused",
                'absorb "attention" is for latent KV, and this model stores keys and values: leave it out',
            )
        if source.model is not None:
            from lamina.convert.meta_model import check_tables

            check_tables(source.model, cut.tables)
    return Conversion(
        **vars(cut),
        vocab_size=source.config.vocab_size,
        max_positions=source.config.max_position_embeddings,
        dtype=source.dtype,
        rope=rope,
        eos_token_ids=source.eos_token_ids,
        config=source.config,
        known=known,
    )


_memory_cache: dict[tuple[object, ...], SlicedModel] = {}


def _cut(source: Source, rope: str, absorb: Absorb, *, keep: bool) -> tuple[SlicedModel, bool]:
    """Return the slices of an architecture and whether they came from a cache."""
    config = source.config.to_json_string(use_diff=False)
    key = (config, source.model_class, source.dtype, source.experts, absorb, rope)
    stored = _memory_cache.get(key) or (disk_cache.load(source, rope, absorb) if keep else None)
    known = stored
    if known is None or source.model is not None:
        from lamina.convert.cut import cut_anew
        from lamina.convert.meta_model import build_on_meta

        model = build_on_meta(source)  # also compares the caller's model with it
        if known is None:
            known = cut_anew(model, source, rope, absorb, key[:-1])
            if keep:
                disk_cache.store(known, source, rope, absorb)
    _memory_cache.pop(key, None)
    _memory_cache[key] = known  # most recently used
    if len(_memory_cache) > _MOST_CACHED:
        del _memory_cache[next(iter(_memory_cache))]
    return known, stored is not None
