"""From a model to its slices: tracing, cutting, and what the result records."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args

import torch
from torch import Tensor, fx
from transformers import PreTrainedModel

from lamina.convert.bind import tensors_by_name
from lamina.convert.constants import BoundConstants, constants_of, tables_in
from lamina.convert.errors import ConversionError, named
from lamina.convert.fused import split_fused
from lamina.convert.normalise import normalise
from lamina.convert.partition import partition
from lamina.convert.program import BATCH, Name, known_spec, spec_of
from lamina.convert.sharding import Sharded, shard
from lamina.convert.sliced import SlicedModel
from lamina.convert.slices import slices_of
from lamina.convert.source import Source, build_on_meta, check_tables, open_source
from lamina.convert.trace import Traced, trace
from lamina.operators import Absorb, Absorption, Attended, AttentionOp, Experts

# Building and tracing set what a process has only one of: torch's default dtype, fx's options, a logger.
_one_at_a_time = threading.Lock()
# Architectures that stay known: of a small one the graph takes a second, of 80 layers ten.
_MOST_KEPT = 32


@dataclass(frozen=True)
class Conversion(SlicedModel):
    """A model cut at its attention operators: n operators, n + 1 slices, no weights."""

    vocab_size: int
    max_positions: int
    dtype: torch.dtype
    rope: str
    eos_token_ids: tuple[int, ...]
    config: Any = field(repr=False)

    def sharded(self, degree: int, experts: Experts = "tp") -> Sharded:
        """The same slices for `degree` ranks that share every layer's work and weights; made once.

        Of a layer's experts each rank has a share of all ("tp"), or some of them ("ep").
        """
        if (degree, experts) not in self._sharded:
            self._sharded[degree, experts] = shard(self, degree, experts)
        return self._sharded[degree, experts]

    def attended(self, tensors: Mapping[str, Tensor] | PreTrainedModel) -> Attended:
        """What attention workers have of it; of `tensors` the sinks, and what they absorb, if anything."""
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
) -> Conversion:
    """Cut a Hugging Face causal language model into slices; a ConversionError gives the reason why not.

    `model_or_path` is a model folder, a config.json, a transformers config or a transformers model. Without
    `dtype` the config's (or the model's) is used. With `rope` "carry", RoPE tables are computed once and
    carried from slice to slice; with "recompute", every slice computes them from positions. With `absorb`
    "attention", queries and outputs of latent KV leave and come to slices as the model has them. An
    architecture that was converted before is not traced again. Threads that convert at the same time wait for
    each other.
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
    with named(source.label), _one_at_a_time:
        cut = _cut(source, rope, absorb)
        if absorb == "attention" and not any(op.absorbs for op in cut.attentions):
            raise ConversionError(
                "convert-absorb-unused",
                'absorb "attention" is for latent KV, and this model stores keys and values: leave it out',
            )
        if source.model is not None:
            check_tables(source.model, cut.tables)
    return Conversion(
        **vars(cut),
        vocab_size=source.config.vocab_size,
        max_positions=source.config.max_position_embeddings,
        dtype=source.dtype,
        rope=rope,
        eos_token_ids=source.eos_token_ids,
        config=source.config,
    )


_kept: dict[tuple[object, ...], SlicedModel] = {}
# The graph that was traced last, and its logits: the other rope mode is often converted next.
_graph: dict[tuple[object, ...], tuple[Traced, fx.Node]] = {}


def _cut(source: Source, rope: str, absorb: Absorb) -> SlicedModel:
    """The slices of an architecture, from the cache if it was converted before."""
    config = source.config.to_json_string(use_diff=False)
    architecture = (config, source.model_class, source.dtype, source.experts, absorb)
    key = (*architecture, rope)
    known = _kept.get(key)
    if known is None or source.model is not None:
        model = build_on_meta(source)  # and the caller's own is compared with it
        known = known or _cut_anew(model, source, rope, absorb, architecture)
    _kept.pop(key, None)
    _kept[key] = known  # most recently used
    if len(_kept) > _MOST_KEPT:
        del _kept[next(iter(_kept))]
    return known


def _cut_anew(
    model: PreTrainedModel, source: Source, rope: str, absorb: Absorb, architecture: tuple[object, ...]
) -> SlicedModel:
    if architecture not in _graph:
        _graph.clear()
        traced = trace(model)
        logits = normalise(traced, absorb)
        _check_logits(logits, source)
        split_fused(traced.graph)
        _graph[architecture] = traced, logits
    traced, logits = _graph[architecture]
    parts = partition(traced, rope)
    slices, classes = slices_of(traced, logits, parts)
    for cut, before in zip(parts.cut_bytes, slices, strict=False):
        # The context that is handed on is exactly the cut that was paid for.
        assert cut == sum(value.bytes for value in before.carried)
    constants = constants_of(traced, parts.constant, model)
    return SlicedModel(
        slices=slices,
        classes=classes,
        attentions=tuple(_attention(node, parts.constant) for node in parts.attentions),
        cut_bytes=parts.cut_bytes,
        constants=constants,
        tables=tables_in(constants, traced),
        states=traced.states,
    )


def _check_logits(node: fx.Node, source: Source) -> None:
    spec, wanted = spec_of(node), (BATCH, source.config.vocab_size)
    if spec is None or spec.dims != wanted:
        shape = "no tensor" if spec is None else f"of shape {list(spec.dims)}"
        raise ConversionError(
            "convert-no-logits",
            f"its output is {shape}, not one logit for each of {wanted[1]} tokens; give the "
            "causal language model",
        )


def _attention(node: fx.Node, constant: set[fx.Node]) -> AttentionOp:
    query, key, value, layer, *numbers = node.args[:8]
    sinks, *absorbed = node.args[8:]
    if isinstance(sinks, fx.Node) and sinks not in constant:
        raise ConversionError("convert-sinks", f"attention {layer} has sinks that depend on the tokens")
    _, heads, _, sent = known_spec(query).row_shape
    output = known_spec(node).row_shape[-1]
    latent: dict[str, Any] = {"latent": output} if value is key else {}
    if absorbed:
        to_keys, to_values = absorbed
        assert isinstance(to_keys, fx.Node)
        assert isinstance(to_values, fx.Node)
        latent = {"to_keys": to_keys.name, "to_values": to_values.name, "query": sent, "output": output}
        latent["latent"] = known_spec(to_values).row_shape[1]
    scoring: Any = dict(zip(("scale", "window", "chunk", "softcap"), numbers, strict=True))
    return AttentionOp(
        layer=int(str(layer)),
        heads=heads,
        kv_heads=known_spec(key).row_shape[1],
        head_dim=known_spec(key).row_shape[3],
        sinks=sinks.name if isinstance(sinks, fx.Node) else "",
        **latent,
        **scoring,
    )
