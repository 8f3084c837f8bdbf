"""A model in slices: what follows from its architecture alone, and its slices with weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lamina.convert.constants import BoundConstants, Constant
from lamina.convert.errors import ConversionError
from lamina.convert.fuse import Fusing
from lamina.convert.graphs import graphed, require_gpu
from lamina.convert.packing import packs
from lamina.convert.program import Name
from lamina.convert.slices import BoundSlice, Slice, SliceClass, bind_python, tensors_by_name, usable
from lamina.convert.states import SliceStates, StateMemory, StateSpec
from lamina.operators import AttentionOp

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BACKENDS = ("python", "torch", "aot", "cudagraph")
# Those that take batches of any size as they are.
EAGER = ("python", "torch")
# The function for prompts is given the same weights, and is of the program as it was.
_FOR_STATES = Fusing(merge=False)


@dataclass(frozen=True)
class SlicedModel:
    """What follows from an architecture alone; conversions of the same architecture share it."""

    slices: tuple[Slice, ...] = field(repr=False)
    classes: tuple[SliceClass, ...] = field(repr=False)
    attentions: tuple[AttentionOp, ...]
    cut_bytes: tuple[int, ...]  # context for one request, around each attention operator
    constants: Mapping[Name, Constant] = field(repr=False)
    tables: Mapping[str, Tensor] = field(repr=False)  # those that no checkpoint holds, by the buffer's name
    states: tuple[StateSpec, ...] = field(repr=False)  # kept between tokens, besides keys and values

    @property
    def state_bytes(self) -> int:
        """That recurrent layers keep of a request."""
        return sum(state.spec.bytes for state in self.states)

    def place_for(self, backend: str, device: torch.device | str) -> torch.device:
        """The device, where the backend can run these slices on it; else a ConversionError."""
        if backend not in BACKENDS:
            raise ConversionError(
                "convert-backend-unknown", f"there is no backend {backend!r}; choose {', '.join(BACKENDS)}"
            )
        if self.states and backend not in EAGER:
            raise ConversionError(
                "convert-state-backend",
                f"the backend {backend!r} cannot run layers that keep state between tokens; choose python",
            )
        place = usable(device)
        if backend == "cudagraph":
            require_gpu(place)
        return place

    def bind(
        self,
        tensors: Mapping[str, Tensor] | PreTrainedModel,
        backend: str = "python",
        device: torch.device | str = "cpu",
        *,
        q_first: bool = True,
        only: range | None = None,
    ) -> list[BoundSlice]:
        """The slices with weights, ready to run; all, or `only` some that follow each other.

        `tensors` has them by their names in the Hugging Face model; either name of a tied pair is enough, and
        tables that no checkpoint holds are made here. A weight is copied only to be moved, cast, split or
        packed. On a CPU the backend "python" runs native operators where it finds their patterns, "torch"
        runs none; without `q_first`, "python" computes k and v with q, and makes their products one.
        """
        place = self.place_for(backend, device)
        memory = StateMemory(self.states, place)
        constants = BoundConstants(self.constants, tensors_by_name(tensors), place)
        bound: list[BoundSlice] = []
        fusing = Fusing(merge=packs(), join=not q_first) if backend in ("python", "cudagraph") else None
        for piece in chosen(self.slices, only):
            weights = [constants[name] for name in piece.weights]
            kind = self.classes[piece.class_index]
            if piece.states:
                states = SliceStates(memory, piece.states)
                keeping = bind_python(kind, piece.index, weights, place, [states], fusing and _FOR_STATES)
                keeping.states = memory
                keeping.prompt = kind.bind_prompt(place, states, *keeping.weights)
                bound.append(keeping)
            else:
                bound.append(_bind(backend, kind, piece.index, weights, place, fusing))
        return bound


def chosen(slices: Sequence[Slice], only: range | None) -> Sequence[Slice]:
    """All, or those of a range."""
    return slices if only is None else slices[only.start : only.stop]


def _bind(
    backend: str,
    kind: SliceClass,
    index: int,
    weights: list[Tensor],
    device: torch.device,
    fusing: Fusing | None,
) -> BoundSlice:
    if backend in EAGER:
        return bind_python(kind, index, weights, device, fusing=fusing)
    if backend == "aot":
        from lamina.convert.aot import bind_aot  # needs the exporter and a compiler, which others do not

        return bind_aot(kind, index, weights, device)
    return graphed(bind_python(kind, index, weights, device, fusing=fusing), kind.program, device)
