"""A model traced and cut: what all that is needed for is loaded only where an architecture is new."""

from __future__ import annotations

from typing import Any

from torch import fx
from transformers import PreTrainedModel

from lamina.convert.errors import ConversionError
from lamina.convert.fused import split_fused
from lamina.convert.normalise import normalise
from lamina.convert.partition import partition
from lamina.convert.program import BATCH, known_spec, spec_of
from lamina.convert.sliced import SlicedModel
from lamina.convert.slicing import slices_of
from lamina.convert.source import Source
from lamina.convert.trace import Traced, trace
from lamina.convert.traced_constants import constants_of, tables_in
from lamina.operators import Absorb, AttentionOp

# The graph that was traced last, and its logits: the other rope mode is often converted next.
_graph: dict[tuple[object, ...], tuple[Traced, fx.Node]] = {}


def cut_anew(
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
