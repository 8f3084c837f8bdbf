"""Constants of slices: weights, and values computed from weights alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lamina.convert.errors import ConversionError
from lamina.convert.program import Name, names_in, with_names


@dataclass(frozen=True)
class Parameter:
    """A tensor of the model by name; `aliases` are other names of the same one (tied weights)."""

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Literal:
    """A tensor known without weights: a number in the model's code, or a table computed from its config."""

    name: str
    tensor: Tensor


@dataclass(frozen=True)
class Computed:
    """A value computed from other constants, once when weights are bound."""

    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def uses(self) -> Iterator[Name]:
        """Yield the constants that it is computed from."""
        yield from names_in((self.args, self.kwargs))


Constant = Parameter | Literal | Computed


def weight_name(constants: Mapping[Name, Constant], name: Name) -> str:
    """Return a constant's name for people: a parameter, rows of it, or an operator of it."""
    constant = constants[name]
    if not isinstance(constant, Computed):
        return constant.name
    first = next(constant.uses(), None)
    source = "" if first is None else weight_name(constants, first)
    if constant.op.__name__ == "take_rows":
        _, dim, rows = constant.args
        return f"{source}[{', :' * dim}{rows!r}]".replace("[, :", "[:, ")
    return f"{constant.op.__name__.partition('.')[0]}({source})"


class BoundConstants:
    """The constants of one model on one device, each computed once for all slices."""

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
            return constant.op(*args, **kwargs)  # a tensor, or a tuple from which another constant takes one

    def _placed(self, value: Any) -> Any:
        return self._device if isinstance(value, torch.device) else value

    def _find(self, parameter: Parameter) -> Tensor:
        names = [name for name in (parameter.name, *parameter.aliases) if name in self._tensors]
        if not names:
            raise ConversionError(
                "convert-weight-missing", f"the weights lack {parameter.name}; do they belong to this model?"
            )
        weight = self._tensors[names[0]]
        if tuple(weight.shape) != parameter.shape:
            raise ConversionError(
                "convert-weight-shape",
                f"the weight {parameter.name} has shape {list(weight.shape)}, not {list(parameter.shape)}",
            )
        if weight.dtype.is_floating_point != parameter.dtype.is_floating_point or weight.is_meta:
            raise ConversionError(
                "convert-weight-kind",
                f"the weight {parameter.name} is {weight.dtype} on {weight.device}, not plain numbers",
            )
        for name in names[1:]:
            if not same_values(weight, self._tensors[name]):
                raise ConversionError(
                    "convert-ties-differ",
                    f"the config ties {names[0]} and {name}, whose weights differ; set tie_word_embeddings "
                    "of the config to False, or leave one of them out",
                )
        return weight.detach().to(self._device, parameter.dtype)


def same_values(one: Tensor, other: Tensor) -> bool:
    """Return whether two weights have the same values; tensors that share memory are not read."""
    if one.is_meta or other.is_meta or one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.device == other.device and one.data_ptr() == other.data_ptr() and one.stride() == other.stride():
        return True
    return torch.equal(one.detach().to(other.device), other.detach())
