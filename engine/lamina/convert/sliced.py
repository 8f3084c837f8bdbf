"""A model cut into slices, with and without weights."""

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
# Backends without preparation per batch size.
EAGER = ("python", "torch")
# The function for prompts uses the same weights with the original program, so that products are not merged.
_FOR_STATES = Fusing(merge=False)


@dataclass(frozen=True)
class SlicedModel:
    """The slices of an architecture without weights; conversions of one architecture share it."""

    slices: tuple[Slice, ...] = field(repr=False)
    classes: tuple[SliceClass, ...] = field(repr=False)
    attentions: tuple[AttentionOp, ...]
    cut_bytes: tuple[int, ...]  # context for one request, around each attention operator
    constants: Mapping[Name, Constant] = field(repr=False)
    tables: Mapping[str, Tensor] = field(repr=False)  # buffers that are in no checkpoint, by name
    states: tuple[StateSpec, ...] = field(repr=False)  # besides keys and values

    @property
    def state_bytes(self) -> int:
        """Bytes of recurrent state per request."""
        return sum(state.spec.bytes for state in self.states)

    def place_for(self, backend: str, device: torch.device | str) -> torch.device:
        """Return the device if the backend can run these slices on it; else raise a ConversionError."""
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
        """Return the slices with weights, ready to run; all, or the range `only`.

        `tensors` has them by their names in the Hugging Face model; either name of a tied pair is enough, and
        tables that are in no checkpoint are computed. A weight is copied only to be moved, cast, split or
        packed. On a CPU the backend "python" replaces patterns with native operators, "torch" does not;
        without `q_first`, "python" computes k and v together with q in merged products.
        """
        place = self.place_for(backend, device)
        memory = StateMemory(self.states, place)
        constants = BoundConstants(self.constants, tensors_by_name(tensors), place)
        bound: list[BoundSlice] = []
        fusing = Fusing(merge=packs(), join=not q_first) if backend in ("python", "cudagraph") else None
        for piece in selected(self.slices, only):
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


def selected(slices: Sequence[Slice], only: range | None) -> Sequence[Slice]:
    """Return all slices, or those of a range."""
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
        from lamina.convert.aot import bind_aot  # imports the exporter, which other backends do not need

        return bind_aot(kind, index, weights, device)
    return graphed(bind_python(kind, index, weights, device, fusing=fusing), kind.program, device)
