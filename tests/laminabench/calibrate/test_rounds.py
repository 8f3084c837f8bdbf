"""Measuring in turns: which columns there is time for, how many rounds, and how steady it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from laminabench.calibrate import rounds
from laminabench.calibrate.rounds import Point, in_rounds, relative_spread


class Clock:
    """A clock that advances with work only."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@dataclass
class Work:
    """A term whose columns take as many seconds as their number says."""

    clock: Clock
    name: str = "work"
    share: float = 1.0
    columns: tuple[int, ...] = (1, 2, 4, 8)
    measured: list[int] = field(default_factory=list)

    def measure(self, column: int) -> Mapping[Point, float]:
        self.clock.now += column
        self.measured.append(column)
        return {("work", column): float(column)}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    result = Clock()
    monkeypatch.setattr(rounds, "time", result)
    return result


@pytest.mark.parametrize(
    ("seconds", "columns", "times"),
    [
        (0, [1, 2], 3),  # never fewer, neither columns nor rounds
        (35, [1, 2, 4], 4),  # 7 s of a round's 7: 8 more are too many; four of five rounds fit before 35 s
        (100, [1, 2, 4, 8], 6),
    ],
)
def test_columns_are_those_there_is_time_for(
    clock: Clock, seconds: float, columns: list[int], times: int
) -> None:
    term = Work(clock)
    messages: list[tuple[int, int]] = []
    result = in_rounds([term], lambda: 1.0, seconds, lambda *at: messages.append(at), 100)
    assert result.columns == {"work": columns}
    assert result.rounds == times
    assert term.measured == columns * times
    assert {point: len(taken) for point, taken in result.seconds.items()} == {
        ("work", column): times for column in columns
    }
    assert messages == sorted(messages)
    assert {total for _, total in messages} == {100}


def test_the_control_is_between_the_terms(clock: Clock) -> None:
    controls = iter([9.0, *[1.0, 1.5, 1.5] * 3])
    result = in_rounds(
        [Work(clock), Work(clock, "more")], lambda: next(controls), 0, lambda done, total: None, 1
    )
    assert result.controls == [1.0, 1.5, 1.5] * 3  # the first is not counted
    assert (result.drift("work"), result.drift("more")) == (pytest.approx(0.5), 0.0)


def test_spread_is_between_quartiles() -> None:
    assert relative_spread([4.0, 4.0, 4.0]) == 0.0
    assert relative_spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert (relative_spread([0.0, 0.0, 0.0]), relative_spread([0.0, 0.0, 1.0])) == (0.0, 1.0)
