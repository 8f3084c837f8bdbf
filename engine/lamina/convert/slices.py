"""Slices of a conversion, and classes of slices that run the same code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from lamina import gpu
from lamina.convert.codegen import Code
from lamina.convert.errors import ConversionError, in_short
from lamina.convert.fuse import Fused, Fusing, fuse
from lamina.convert.packing import packed
from lamina.convert.program import Name, Program, Spec
from lamina.convert.prompt import prompt_source
from lamina.convert.states import StateMemory

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Carried:
    """A value of the context between two slices."""

    name: str  # of its node in the traced graph
    op: str
    spec: Spec
    bytes: int  # for one request; 0 for tokens and positions, which every worker knows


@dataclass(frozen=True)
class Slice:
    """One of the n+1 parts of a model between its n attention operators."""

    index: int
    program: Program
    weights: tuple[Name, ...]  # the constants that fill the program's weights, in their order
    carried: tuple[Carried, ...]  # the results of `rest` in order: the context of the next slice
    states: tuple[int, ...] = ()  # the model's numbers of this slice's states, in order
    class_index: int = -1  # once slices of the same structure are known


@dataclass(frozen=True)
class SliceClass:
    """A class of slices with one structure."""

    index: int
    program: Program = field(repr=False)  # of the first slice; others have equal ones
    code: Code = field(repr=False)
    members: tuple[int, ...]

    @property
    def source(self) -> str:
        """The Python source that the default backend runs."""
        return self.code.text

    @cached_property
    def bind(self) -> Callable[..., tuple[Callable[..., Any], ...]]:
        """Compiled source: takes a device and the weights, returns the functions of the pieces."""
        compiled: Callable[..., tuple[Callable[..., Any], ...]]
        compiled = self.code.function("bind", f"<slice class {self.index}>")
        return compiled

    def fused(self, how: Fusing) -> Fused:
        """Return the program rewritten for a device; cached."""
        if how not in self._fused:
            self._fused[how] = fuse(self.program, how)
        return self._fused[how]

    @cached_property
    def _fused(self) -> dict[Fusing, Fused]:
        return {}

    @cached_property
    def bind_prompt(self) -> Callable[..., Callable[..., Any]]:
        """Compiled source of the function for several tokens of one prompt, for slices with state."""
        compiled: Callable[..., Callable[..., Any]]
        compiled = prompt_source(self.program).function("bind", f"<prompts of slice class {self.index}>")
        return compiled


Context = tuple[Tensor, ...]
State = Any


class BoundSlice:
    """One slice with its weights. The last one has logits; all others have query, keyvalue and rest.

    They are plain functions set on the instance: nothing stands between the caller and the generated code.
    """

    __slots__ = (
        *("index", "keyvalue", "logits", "made_of", "pieces", "prompt", "query", "rest", "source", "states"),
        "weights",
    )

    query: Callable[[Context, Tensor | None], tuple[Tensor, State]]
    keyvalue: Callable[[State], tuple[Any, ...]]  # k and v or, where values are part of it, k; and the state
    rest: Callable[[State], Context]
    logits: Callable[[Context, Tensor | None], Tensor]

    def __init__(
        self, index: int, source: str, weights: tuple[Tensor, ...], pieces: Mapping[str, Callable[..., Any]]
    ) -> None:
        self.index = index
        self.source = source
        self.weights = weights
        # For each weight, the numbers of the slice's weights in it: several if products were merged.
        self.made_of: tuple[tuple[int, ...], ...] = tuple((number,) for number in range(len(weights)))
        self.states: StateMemory | None = None  # shared by the slices of a model
        # With states: q, k and v, and context for several tokens of the selected sequence.
        self.prompt: Callable[[Context, Tensor | None], tuple[Context, ...]] | None = None
        self.pieces = tuple(pieces)  # names of the functions it has
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
    fusing: Fusing | None = None,
) -> BoundSlice:
    """Bind a slice as generated Python functions; `bound` are the program's objects besides weights."""
    program = kind.program
    if fusing is not None and device.type == "cuda":
        # On a GPU weights are the model's own tensors: a merged one would be a copy.
        fusing = fusing._replace(merge=False, on_gpu=True) if gpu.has_kernels() else None
    if fusing is not None:
        return _bind_fused(kind, index, weights, [device, *bound], fusing)
    ready = [
        packed(program, value.name, weight) for value, weight in zip(program.weights, weights, strict=True)
    ]
    functions = kind.bind(device, *bound, *ready)
    names = [piece.name for piece in program.pieces]
    return BoundSlice(index, kind.source, tuple(ready), dict(zip(names, functions, strict=True)))


def _bind_fused(
    kind: SliceClass, index: int, weights: Sequence[Tensor], given: Sequence[object], fusing: Fusing
) -> BoundSlice:
    fused = kind.fused(fusing)
    ready = fused.ready(weights)
    functions = fused.bind(*given, *ready)
    names = [piece.name for piece in fused.program.pieces]
    one = BoundSlice(index, fused.code.text, tuple(ready), dict(zip(names, functions, strict=True)))
    one.made_of = fused.made_of()
    return one


def tensors_by_name(tensors: Mapping[str, Tensor] | PreTrainedModel) -> Mapping[str, Tensor]:
    """Return a model's tensors by name; a mapping is returned unchanged."""
    if not isinstance(tensors, nn.Module):
        return tensors
    return {**dict(tensors.named_parameters(remove_duplicate=False)), **dict(tensors.named_buffers())}


def usable(device: torch.device | str) -> torch.device:
    """Return the device if tensors can be allocated on it; else raise a ConversionError."""
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
