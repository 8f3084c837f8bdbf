"""Tracing and cutting of a model; imported only for architectures that are not cached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from transformers import PreTrainedModel

from lamina.convert.constants import Computed, Constant, Literal, Parameter
from lamina.convert.errors import ConversionError
from lamina.convert.fused import split_fused
from lamina.convert.normalise import normalise
from lamina.convert.partition import partition
from lamina.convert.program import BATCH, Name, known_spec, spec_of
from lamina.convert.sliced import SlicedModel
from lamina.convert.slicing import slices_of
from lamina.convert.source import Source
from lamina.convert.trace import Traced, trace
from lamina.operators import Absorb, AttentionOp

# The last traced graph and its logits: the other rope mode is often converted next.
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
        # The context between slices is exactly the cut's values.
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
    spec, expected = spec_of(node), (BATCH, source.config.vocab_size)
    if spec is None or spec.dims != expected:
        shape = "no tensor" if spec is None else f"of shape {list(spec.dims)}"
        raise ConversionError(
            "convert-no-logits",
            f"its output is {shape}, not one logit for each of {expected[1]} tokens; give the "
            "causal language model",
        )


def _attention(node: fx.Node, constant: set[fx.Node]) -> AttentionOp:
    query, key, value, layer, *numbers = node.args[:8]
    sinks, *absorbed = node.args[8:]
    if isinstance(sinks, fx.Node) and sinks not in constant:
        raise ConversionError("convert-sinks", f"attention {layer} has sinks that depend on the tokens")
    _, heads, _, sent = known_spec(query).row_shape
    output = known_spec(node).row_shape[-1]
    scoring: Any = dict(zip(("scale", "window", "chunk", "softcap"), numbers, strict=True))
    attention = AttentionOp(
        layer=int(str(layer)),
        heads=heads,
        kv_heads=known_spec(key).row_shape[1],
        head_dim=known_spec(key).row_shape[3],
        sinks=sinks.name if isinstance(sinks, fx.Node) else "",
        **scoring,
    )
    if not absorbed:
        return replace(attention, latent=output) if value is key else attention
    to_keys, to_values = absorbed
    assert isinstance(to_keys, fx.Node)
    assert isinstance(to_values, fx.Node)
    return replace(
        attention,
        to_keys=to_keys.name,
        to_values=to_values.name,
        query=sent,
        output=output,
        latent=known_spec(to_values).row_shape[1],
    )


def constants_of(traced: Traced, constant: set[fx.Node], model: PreTrainedModel) -> dict[Name, Constant]:
    """Return every constant of the graph by its node's name."""
    result: dict[Name, Constant] = {}
    aliases = _aliases(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    persistent = model.state_dict()
    for node in traced.graph.nodes:
        if node not in constant or not node.users:
            continue
        name = Name(node.name)
        if node in traced.parameters or traced.buffers.get(node) in persistent:
            target = traced.parameters.get(node) or traced.buffers[node]
            tensor = parameters.get(target, persistent.get(target))
            assert tensor is not None
            result[name] = Parameter(target, aliases.get(target, ()), tuple(tensor.shape), tensor.dtype)
        elif node in traced.buffers:
            result[name] = Literal(traced.buffers[node], _restored(model, traced.buffers[node]))
        elif node in traced.literals:
            result[name] = Literal(node.name, traced.literals[node])
        else:
            arguments: Any = fx.map_arg((node.args, node.kwargs), lambda used: Name(used.name))
            result[name] = Computed(node.target, *arguments)
    return result


def tables_in(constants: Mapping[Name, Constant], traced: Traced) -> dict[str, Tensor]:
    """Return the constants that are buffers of the model and in no checkpoint, by the buffer's name."""
    buffers = {Name(node.name) for node in traced.buffers}
    return {
        constant.name: constant.tensor
        for name, constant in constants.items()
        if name in buffers and isinstance(constant, Literal)
    }


def _aliases(model: PreTrainedModel) -> dict[str, tuple[str, ...]]:
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return {
        name: tuple(other for other in group if other != name) for group in groups.values() for name in group
    }


def _restored(model: PreTrainedModel, name: str) -> Tensor:
    """Recompute a buffer that is in no checkpoint, as the model does from its config."""
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    lost = module._buffers[attribute]
    assert lost is not None
    # Only buffers get memory: the same module may own a large weight, which stays on the meta device.
    blank = torch.nan if lost.is_floating_point() else torch.iinfo(lost.dtype).min
    with torch.device("cpu"), torch.no_grad():
        for other, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[other] = torch.full(buffer.shape, blank, dtype=buffer.dtype)
        initialise: Any = model._init_weights
        initialise(module)
        restored = module._buffers[attribute]
    assert restored is not None
    unset = restored.isnan() if restored.is_floating_point() else restored == blank
    if bool(unset.any()):
        raise ConversionError(
            "convert-buffer-unknown",
            f"the buffer {name} is in no checkpoint and does not follow from the config",
        )
    copy: Tensor = restored.clone()
    return copy
