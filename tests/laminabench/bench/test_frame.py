"""The frame: what alternates, what JSON has, and how a report is drawn."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from laminabench.bench.frame import (
    Report,
    Row,
    Spread,
    Table,
    all_met,
    in_turns,
    ratios,
    relative,
    rounds_for,
    spread,
    time_text,
    timed,
    times_report,
)
from laminabench.cli.bench import render


def drawn(report: Report) -> list[str]:
    console = Console(record=True, width=200, file=io.StringIO())
    render(console, report.text)
    return console.export_text().splitlines()


def test_actions_alternate_and_each_rounds_end_is_told() -> None:
    calls: list[str] = []
    messages: list[tuple[int, int | None]] = []
    actions = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    results = in_turns(
        actions, 2, lambda *progress: messages.append(progress), after=lambda: calls.append("-")
    )
    assert ("".join(calls), messages) == ("ab-ab-", [(0, 2), (1, 2), (2, 2)])
    assert results == {"a": [1, 4], "b": [2, 5]}


def test_a_ratio_is_of_the_same_round() -> None:
    assert ratios([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == Spread(3.0, 2.0, 4.0)


def test_rounds_are_no_fewer_than_asked_for() -> None:
    assert list(rounds_for(0.0, 3)) == [0, 1, 2]


def test_what_is_not_judged_is_not_missed() -> None:
    assert all_met([Row({}, (), None), Row({}, (), True)])
    assert not all_met([Row({}, (), None), Row({}, (), False)])


def test_json_has_rows_and_spreads_as_objects() -> None:
    rows = [Row({"name": "a", "took": spread([1.0, 3.0])}, ("a",), met=True), Row({}, ())]
    assert Report({"rows": rows}, []).json() == {
        "rows": [{"name": "a", "took": {"median": 2.0, "min": 1.0, "max": 3.0}, "met": True}, {"met": None}]
    }


def test_a_report_is_drawn_with_its_verdicts() -> None:
    text = ["in [brackets]", ("half as fast", False), Table(("<what", "GB/s", ""), [("[a]", "12", True)])]
    lines = drawn(Report({}, text))
    assert lines[:2] == ["in [brackets]", "half as fast: missed"]
    assert [line.split() for line in lines[2:]] == [["what", "GB/s"], ["[a]", "12", "met"]]


def test_times_are_drawn_beside_their_targets() -> None:
    rows = [
        timed("fast", [1.5e-6, 2e-6, 9e-6], 20e-6),
        timed("long", [3.0], None),
        relative("over", spread([0.5, 0.75, 1.0]), 0.8),
    ]
    fast, long, over = drawn(times_report("times", rows))[1:]
    assert fast.split() == ["fast", "2", "us", "1.5", "us", "to", "9", "us", "20", "us", "met"]
    assert long.split()[-2:] == ["not", "judged"]
    assert over.split() == ["over", "0.75", "0.50", "to", "1.00", "0.80", "met"]


@pytest.mark.parametrize(("seconds", "text"), [(2e-6, "2 us"), (0.06, "60.0 ms"), (3.0, "3.00 s")])
def test_times_are_in_the_unit_that_is_read_best(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
