"""What recurrent layers keep of each sequence between tokens, on the worker that runs their slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lamina.convert.trace import StateSpec

_FIRST_ROWS = 16


class StateMemory:
    """A row of every state for each sequence, by the sequence's name; it grows with them."""

    def __init__(self, specs: Sequence[StateSpec], device: torch.device) -> None:
        self._tensors = [torch.empty(0, *spec.shape, dtype=spec.dtype, device=device) for spec in specs]
        self._device = device
        self._row_of: dict[int, int] = {}
        self._spare: list[int] = []
        self.selected = self.rows(())  # of the sequences that slices run with now

    def rows(self, names: Iterable[int]) -> Tensor:
        """Where the states of sequences are, to be `selected`."""
        return torch.tensor([self._row_of[name] for name in names], dtype=torch.int64, device=self._device)

    def begin(self, name: int) -> None:
        """A sequence comes of which no token has been seen."""
        row = self._row(name)
        for tensor in self._tensors:
            tensor[row] = 0

    def copy(self, parent: int, child: int) -> None:
        """A sequence comes that begins as another one is now."""
        row, source = self._row(child), self._row_of[parent]
        for tensor in self._tensors:
            tensor[row] = tensor[source]

    def release(self, names: Iterable[int]) -> None:
        self._spare += [row for name in names if (row := self._row_of.pop(name, None)) is not None]

    def clear(self) -> None:
        self.release(list(self._row_of))

    def _row(self, name: int) -> int:
        if name not in self._row_of:
            if not self._spare:
                self._grow()
            self._row_of[name] = self._spare.pop()
        return self._row_of[name]

    def _grow(self) -> None:
        held = len(self._row_of)
        more = max(_FIRST_ROWS, held)
        self._tensors = [torch.cat([one, one.new_empty(more, *one.shape[1:])]) for one in self._tensors]
        self._spare = list(range(held + more - 1, held - 1, -1))

    def read(self, number: int) -> Tensor:
        return self._tensors[number].index_select(0, self.selected)

    def write(self, number: int, rows: Tensor) -> None:
        self._tensors[number].index_copy_(0, self.selected, rows)


class SliceStates:
    """Those of one slice, which counts them from 0."""

    def __init__(self, memory: StateMemory, numbers: Sequence[int]) -> None:
        self._memory, self._numbers = memory, numbers

    def read(self, number: int) -> Tensor:
        return self._memory.read(self._numbers[number])

    def write(self, number: int, rows: Tensor) -> None:
        self._memory.write(self._numbers[number], rows)
