"""The front end of the engine's server, by events of the server and of its client."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from laminabench.calibrate.front_end import BURSTS, Burst, Events, measure, points, received
from laminabench.util.errors import UserError


def test_points_are_differences_of_the_events_at_both_ends() -> None:
    events = Events(
        # A request before the burst, and one after it.
        [(0.5, 0.9), (1.012, 1.1), (1.010, 1.1), (2.5, 2.6)],
        [(0.6, 0.9, 1, 1), (1.02, 1.1, 2, 2), (1.103, 1.2, 2, 0), (1.205, 1.3, 2, 0), (2.5, 2.6, 1, 1)],
    )
    burst = Burst(np.array([1.0, 1.001]), np.array([1.104, 1.106]))
    assert {point: taken[0] for point, taken in points([burst], events).items()} == pytest.approx(
        {("taken in", 2): 10.5e-3, ("out", 2): 5e-3, ("begun", 2): 20e-3, ("between steps", 2): 4e-3}
    )


def test_a_server_that_has_ended_is_an_error() -> None:
    near_end, far_end = multiprocessing.Pipe()
    far_end.close()
    with pytest.raises(UserError, match="calibrate-server"):
        received(near_end)


@pytest.mark.long
@pytest.mark.usefixtures("shared_machine")
def test_a_server_is_measured_in_a_process_of_its_own(tiny: Callable[[], Any]) -> None:
    taken = measure(tiny(), 0.0)
    kinds = ("taken in", "out", "begun", "between steps")
    assert {(kind, size): len(taken[kind, size]) for kind in kinds for size in BURSTS} == {
        (kind, size): 3 for kind in kinds for size in BURSTS
    }
    assert all(0 < seconds < 60 for each in taken.values() for seconds in each)
