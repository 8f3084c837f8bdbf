"""The engine's order of turns is the virtual cluster's: held against what the simulator records."""

from __future__ import annotations

import numpy as np
import pytest
from made_outcome import trace_of

from lamina.pipeline import Schedule
from laminabench.sim.outcome import ATTENTION
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Pipelining, Spec, Timing

LAYERS, MOST, ROWS = 4, 12, 24


def recorded(pipelining: Pipelining, batches: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """(batch, cycle, slice, replica) of every slice and attention, in the order of the simulator's work."""
    # Requests of different lengths, so that batches run empty one after the other.
    trace = trace_of([5] * ROWS, range(3, 3 + ROWS))
    slice_s, nothing = np.full(MOST + 1, 1e-4), np.zeros(MOST + 1)
    timing = Timing(slice_s, slice_s, slice_s, np.full(MOST + 1, 7e-5), nothing)
    spec = Spec(
        LAYERS, timing, tokens_per_pool=10_000, max_requests=MOST, batches=batches, pipelining=pipelining
    )
    timeline = simulate(trace, spec, Offered(), record_s=(0.0, 1e3)).timeline
    rows = list(
        zip(*(timeline[name].tolist() for name in ("batch", "cycle", "slice", "worker")), strict=True)
    )
    return [row for row in rows if row[3] != ATTENTION], [row[:3] for row in rows if row[3] == ATTENTION]


@pytest.mark.parametrize(
    ("pipelining", "batches"),
    [("serial", 1), *(("rotational", n) for n in (2, 3, 4, 5)), *(("fixed", n) for n in (1, 2, 3))],
)
def test_the_simulator_works_in_the_engines_order_at_its_places(pipelining: Pipelining, batches: int) -> None:
    slices, attentions = recorded(pipelining, batches)
    cycles = {(batch, cycle) for batch, cycle, *_ in slices}
    last = max(cycle for _, cycle in cycles)
    assert last > 20
    assert batches == 1 or len(cycles) < batches * (last + 1), "some batch has sat out a cycle"
    expected = []
    for turn in Schedule(pipelining, batches, LAYERS + 1).turns():
        if turn.cycle > last:
            break
        if (turn.batch, turn.cycle) in cycles:
            expected.append((turn.batch, turn.cycle, turn.slice, turn.place))
    assert slices == expected
    assert attentions == [row[:3] for row in expected if row[2] < LAYERS]
