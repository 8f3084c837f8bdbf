"""A slice that can be run: its code with one model's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lamina.convert.codegen import packed
from lamina.convert.errors import ConversionError, in_short
from lamina.convert.slices import SliceClass

Context = tuple[Tensor, ...]
State = Any


class BoundSlice:
    """One slice with its weights. The last one has logits; all others have query, keyvalue and rest.

    They are plain functions set on the instance: nothing stands between the caller and the generated code.
    """

    __slots__ = ("index", "keyvalue", "logits", "pieces", "query", "rest", "source", "weights")

    query: Callable[[Context, Tensor | None], tuple[Tensor, State]]
    keyvalue: Callable[[State], tuple[Tensor, Tensor, State]]
    rest: Callable[[State], Context]
    logits: Callable[[Context, Tensor | None], Tensor]

    def __init__(
        self, index: int, source: str, weights: tuple[Tensor, ...], pieces: Mapping[str, Callable[..., Any]]
    ) -> None:
        self.index = index
        self.source = source
        self.weights = weights
        self.pieces = tuple(pieces)  # the names of those it has
        for name in ("query", "keyvalue", "rest", "logits"):
            setattr(self, name, pieces.get(name) or _absent(index, name))


def _absent(index: int, name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object) -> NoReturn:
        raise AttributeError(
            f"slice {index} has no {name}: only the last slice has logits, and it has nothing else"
        )

    return refuse


def bind_python(
    kind: SliceClass,
    index: int,
    weights: Sequence[Tensor],
    device: torch.device,
    bound: Sequence[object] = (),
) -> BoundSlice:
    """The slice as generated Python functions; `bound` is what its program is given beside weights."""
    program = kind.program
    ready = [
        packed(program, value.name, weight) for value, weight in zip(program.weights, weights, strict=True)
    ]
    functions = kind.bind(device, *bound, *ready)
    names = [piece.name for piece in program.pieces]
    return BoundSlice(index, kind.source, tuple(ready), dict(zip(names, functions, strict=True)))


def tensors_by_name(tensors: Mapping[str, Tensor] | PreTrainedModel) -> Mapping[str, Tensor]:
    """A model's tensors by their names; a mapping is taken as it is."""
    if not isinstance(tensors, PreTrainedModel):
        return tensors
    return {**dict(tensors.named_parameters(remove_duplicate=False)), **dict(tensors.named_buffers())}


def usable(device: torch.device | str) -> torch.device:
    """The device, once it is known to hold numbers."""
    try:
        place = torch.device(device)
        if place.type != "meta":
            torch.empty(0, device=place)
            return place
    except (RuntimeError, AssertionError, TypeError) as error:  # AssertionError: a torch without CUDA
        raise ConversionError("convert-device", f"cannot use device {device!s}: {in_short(error)}") from error
    raise ConversionError(
        "convert-meta-device", "device meta holds no numbers to compute with; choose cpu or cuda"
    )
