"""Recurrent states of sequences, on the worker that runs the layers' slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lamina.convert.program import BATCH, Spec, make_spec

StateKind = Literal["conv", "recurrent"]
_FIRST_ROWS = 16


@dataclass(frozen=True)
class StateSpec:
    """A state that a layer keeps of each request between tokens, besides keys and values."""

    layer: int  # of the model
    kind: StateKind
    place: int  # index among states of this kind
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def spec(self) -> Spec:
        return make_spec((BATCH, *self.shape), self.dtype)


class StateMemory:
    """A row of every state for each sequence, by the sequence's name.

    A state's tensor is made when its slice first runs: a pipeline stage has those of its own slices only.
    """

    def __init__(self, specs: Sequence[StateSpec], device: torch.device) -> None:
        self._specs = specs
        self._tensors: dict[int, Tensor] = {}
        self._device = device
        self._rows = 0
        self._row_of: dict[int, int] = {}
        self._spare: list[int] = []
        self.selected = self.rows(())  # of the sequences that slices run with now

    def reserve(self, sequences: int) -> None:
        """Reserve rows for this many sequences; more rows are added on demand, as for short-lived forks."""
        more = sequences - self._rows
        for number, one in self._tensors.items():
            self._tensors[number] = torch.cat([one, one.new_empty(more, *one.shape[1:])])
        self._spare += range(sequences - 1, self._rows - 1, -1)
        self._rows = sequences

    def rows(self, names: Iterable[int]) -> Tensor:
        """Return the rows of sequences' states, to be assigned to `selected`."""
        return torch.tensor([self._row_of[name] for name in names], dtype=torch.int64, device=self._device)

    def begin(self, name: int) -> None:
        """Add a sequence without tokens; its states are 0."""
        row = self._row(name)
        for tensor in self._tensors.values():
            tensor[row] = 0

    def copy(self, parent: int, child: int) -> None:
        """Add a sequence with a copy of another one's states."""
        row, source = self._row(child), self._row_of[parent]
        for tensor in self._tensors.values():
            tensor[row] = tensor[source]

    def release(self, names: Iterable[int]) -> None:
        self._spare += [row for name in names if (row := self._row_of.pop(name, None)) is not None]

    def clear(self) -> None:
        self.release(list(self._row_of))

    def _row(self, name: int) -> int:
        if name not in self._row_of:
            if not self._spare:
                self.reserve(max(_FIRST_ROWS, 2 * self._rows))
            self._row_of[name] = self._spare.pop()
        return self._row_of[name]

    def _tensor(self, number: int) -> Tensor:
        if number not in self._tensors:
            spec = self._specs[number]
            made = torch.empty(self._rows, *spec.shape, dtype=spec.dtype, device=self._device)
            made[list(self._row_of.values())] = 0  # states start at 0
            self._tensors[number] = made
        return self._tensors[number]

    def read(self, number: int) -> Tensor:
        return self._tensor(number).index_select(0, self.selected)

    def write(self, number: int, rows: Tensor) -> None:
        self._tensor(number).index_copy_(0, self.selected, rows)


class SliceStates:
    """The states of one slice, numbered from 0."""

    def __init__(self, memory: StateMemory, numbers: Sequence[int]) -> None:
        self._memory, self._numbers = memory, numbers

    def read(self, number: int) -> Tensor:
        return self._memory.read(self._numbers[number])

    def write(self, number: int, rows: Tensor) -> None:
        self._memory.write(self._numbers[number], rows)
