"""Seconds become whole ticks, or an error: a cast that wraps around is a wrong number that nothing shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from laminabench.sim.spec import TICKS_PER_S, ticks
from laminabench.util.errors import UserError


@pytest.mark.parametrize("seconds", [np.nan, np.inf, 1e30, -1e30, 2.0**63 / TICKS_PER_S, [0.0, np.nan, 1.0]])
def test_what_64_bits_cannot_hold_is_refused(seconds: Any) -> None:
    with pytest.raises(UserError, match="time-not-countable"):
        ticks(seconds)


def test_what_they_hold_is_rounded() -> None:
    assert ticks(np.array([0.0, 1.26e-10, -1.0, 9e8])).tolist() == [0, 1, -TICKS_PER_S, 9 * 10**18]
    assert ticks([]).tolist() == []
