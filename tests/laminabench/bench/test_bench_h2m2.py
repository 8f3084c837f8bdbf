"""The benchmark of boards measures what it says, and judges itself by its own numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from laminabench.bench import sim
from laminabench.sim.h2m2_scenario import dynamic_trace


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few lengths, and a few requests instead of an hour of them."""
    monkeypatch.setattr(sim, "LENGTHS", range(512, 2049, 512))
    monkeypatch.setattr(sim, "resolve", lambda name, *, offline: dynamic_trace(1, iterations=8))


def test_every_row_is_judged_by_its_own_numbers(facts: Callable[..., dict[str, Any]]) -> None:
    result = facts("h2m2", "--repeats", "2")
    rows = result["rows"]
    assert [row["target_s"] for row in rows] == [sim.DECISION_TARGET_S] * 2 + [sim.SCENARIO_TARGET_S, None]
    for row, judged in zip(rows, ("max", "max", "median", None), strict=True):
        seconds = row["seconds"]
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
        assert row["met"] == (None if judged is None else seconds[judged] <= row["target_s"])
    assert result["met"] == all(row["met"] is not False for row in rows)


def test_people_see_what_was_measured(shell: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = shell("h2m2", "--repeats", "1")
    assert code == 0
    assert "the dynamic scenario: 128 iterations of 32 requests" in out
