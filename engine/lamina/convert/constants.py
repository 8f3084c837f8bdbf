"""What slices need besides tokens and context: weights, and values that follow from weights alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from transformers import PreTrainedModel

from lamina.convert.errors import ConversionError
from lamina.convert.program import Name, names_in, with_names
from lamina.convert.source import same_values
from lamina.convert.trace import Traced


@dataclass(frozen=True)
class Parameter:
    """A tensor of the model by name; `aliases` are other names of the same one (tied weights)."""

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Literal:
    """A tensor known without any weight: a number in the model's code, or a table made from its config."""

    name: str
    tensor: Tensor


@dataclass(frozen=True)
class Computed:
    """What follows from other constants, computed once when weights are bound."""

    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def uses(self) -> Iterator[Name]:
        """The constants it is computed from."""
        yield from names_in((self.args, self.kwargs))


Constant = Parameter | Literal | Computed


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


def weight_name(constants: Mapping[Name, Constant], name: Name) -> str:
    """What a constant is to the model: a parameter's name, rows of it, or what it is computed from."""
    constant = constants[name]
    if not isinstance(constant, Computed):
        return constant.name
    first = next(constant.uses(), None)
    source = "" if first is None else weight_name(constants, first)
    if constant.op.__name__ == "take_rows":
        _, dim, rows = constant.args
        return f"{source}[{', :' * dim}{rows!r}]".replace("[, :", "[:, ")
    return f"{constant.op.__name__.partition('.')[0]}({source})"


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


class BoundConstants:
    """The constants of one model on one device, each made once however many slices use it."""

    def __init__(
        self, constants: Mapping[Name, Constant], tensors: Mapping[str, Tensor], device: torch.device
    ) -> None:
        self._constants = constants
        self._tensors = tensors
        self._device = device
        self._made: dict[Name, Any] = {}

    def __getitem__(self, name: Name) -> Any:
        if name not in self._made:
            self._made[name] = self._make(self._constants[name])
        return self._made[name]

    def _make(self, constant: Constant) -> Any:
        if isinstance(constant, Literal):
            return constant.tensor.to(self._device)
        if isinstance(constant, Parameter):
            return self._find(constant)
        args, kwargs = with_names((constant.args, constant.kwargs), self.__getitem__, self._placed)
        with torch.no_grad():
            return constant.op(*args, **kwargs)  # a tensor, or a tuple of which another constant takes one

    def _placed(self, value: Any) -> Any:
        return self._device if isinstance(value, torch.device) else value

    def _find(self, wanted: Parameter) -> Tensor:
        names = [name for name in (wanted.name, *wanted.aliases) if name in self._tensors]
        if not names:
            raise ConversionError(
                "convert-weight-missing", f"the weights lack {wanted.name}; do they belong to this model?"
            )
        weight = self._tensors[names[0]]
        if tuple(weight.shape) != wanted.shape:
            raise ConversionError(
                "convert-weight-shape",
                f"the weight {wanted.name} has shape {list(weight.shape)}, not {list(wanted.shape)}",
            )
        if weight.dtype.is_floating_point != wanted.dtype.is_floating_point or weight.is_meta:
            raise ConversionError(
                "convert-weight-kind",
                f"the weight {wanted.name} is {weight.dtype} on {weight.device}, not plain numbers",
            )
        for name in names[1:]:
            if not same_values(weight, self._tensors[name]):
                raise ConversionError(
                    "convert-ties-differ",
                    f"the config ties {names[0]} and {name}, whose weights differ; set tie_word_embeddings "
                    "of the config to False, or leave one of them out",
                )
        return weight.detach().to(self._device, wanted.dtype)
