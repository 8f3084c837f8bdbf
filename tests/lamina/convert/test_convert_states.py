"""What slices keep of sequences: whose row it is, and when memory is taken for it."""

from __future__ import annotations

import torch

from lamina.convert import StateMemory
from lamina.convert.trace import StateSpec

SPECS = [StateSpec(layer, "recurrent", 0, (2, 3), torch.float32) for layer in range(2)]


def stored(memory: StateMemory, number: int, *names: int) -> list[float]:
    """A number of each sequence's row, all of which are alike."""
    memory.selected = memory.rows(names)
    rows = memory.read(number)
    assert all(bool((row == row[0, 0]).all()) for row in rows)
    return [float(row[0, 0]) for row in rows]


def test_rows_begin_with_zeros_are_copied_and_stay_as_memory_grows() -> None:
    memory = StateMemory(SPECS, torch.device("cpu"))
    memory.reserve(2)
    memory.begin(5)
    assert stored(memory, 0, 5) == [0]
    memory.write(0, torch.ones(1, 2, 3))
    memory.copy(5, 6)
    memory.begin(7)  # a third one
    assert stored(memory, 0, 7, 5, 6) == [0, 1, 1]
    memory.write(0, torch.full((3, 2, 3), 4.0))
    memory.release([5])
    memory.begin(8)
    assert stored(memory, 0, 6, 8) == [4, 0]


def test_a_state_takes_memory_once_a_slice_uses_it() -> None:
    memory = StateMemory(SPECS, torch.device("cpu"))
    memory.reserve(4)
    memory.begin(1)
    stored(memory, 1, 1)
    assert list(memory._tensors) == [1]
    assert stored(memory, 0, 1) == [0]
