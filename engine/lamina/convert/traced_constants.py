"""The constants of a traced graph: weights by name, tables made again, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from transformers import PreTrainedModel

from lamina.convert.constants import Computed, Constant, Literal, Parameter
from lamina.convert.errors import ConversionError
from lamina.convert.program import Name
from lamina.convert.trace import Traced


def constants_of(traced: Traced, constant: set[fx.Node], model: PreTrainedModel) -> dict[Name, Constant]:
    """Every constant of the graph by its node's name."""
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
    """Those of the constants that are buffers of the model and in no checkpoint, by the buffer's name."""
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
    """A buffer that no checkpoint holds, made as the model makes it: from its config."""
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
