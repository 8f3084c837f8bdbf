"""Seconds become whole ticks, or an error: a cast that wraps around is a wrong number that nothing shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.find_model import model
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import TICKS_PER_S, ticks
from laminabench.systems.registry import papers_setup, system
from laminabench.traces.table import TraceMeta, make_trace
from laminabench.util.errors import UserError


@pytest.mark.parametrize("seconds", [np.nan, np.inf, 1e30, -1e30, 2.0**63 / TICKS_PER_S, [0.0, np.nan, 1.0]])
def test_what_64_bits_cannot_hold_is_refused(seconds: Any) -> None:
    with pytest.raises(UserError, match="time-not-countable"):
        ticks(seconds)


def test_what_they_hold_is_rounded() -> None:
    assert ticks(np.array([0.0, 1.26e-10, -1.0, 9e8])).tolist() == [0, 1, -TICKS_PER_S, 9 * 10**18]
    assert ticks([]).tolist() == []


@pytest.mark.parametrize("arrival_s", [0.0, 4e5, 6e5, 9e7])
def test_columns_are_seconds_on_either_side_of_2_to_the_52_ticks(arrival_s: float) -> None:
    """About 450,360 s, from where on ticks are converted otherwise."""
    setup = papers_setup("vllm", model("llama3-8b"), load_costs("vllm-0.14"))
    arrivals, tokens = np.array([0.0, arrival_s + 1]), np.array([100, 100], np.int32)
    trace = make_trace(arrivals, tokens, np.array([1, 3], np.int32), TraceMeta("late"))
    rows = simulate(trace, system("vllm").build(setup).spec, Offered("open")).iterations
    assert rows["start_s"][1] == arrival_s + 1
    assert rows["start_s"][2] == pytest.approx(arrival_s + 1 + rows["duration_s"][1], abs=1e-7)
