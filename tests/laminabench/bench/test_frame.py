"""The frame: what alternates, what JSON has, and how a report is drawn."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest
from rich.console import Console

from laminabench.bench.frame import (
    Memory,
    Relative,
    Report,
    Spread,
    Table,
    Timed,
    all_judged,
    all_met,
    in_turns,
    ratios,
    rounds_for,
    spread,
    time_text,
    timed,
    times_table,
)
from laminabench.cli.bench import render


def drawn(report: Report) -> list[str]:
    console = Console(record=True, width=200, file=io.StringIO())
    render(console, report.text)
    return console.export_text().splitlines()


def test_actions_alternate_and_each_rounds_end_is_told() -> None:
    calls: list[str] = []
    told: list[tuple[int, int | None]] = []
    actions = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    results = in_turns(actions, 2, lambda *progress: told.append(progress), after=lambda: calls.append("-"))
    assert ("".join(calls), told) == ("ab-ab-", [(0, 2), (1, 2), (2, 2)])
    assert results == {"a": [1, 4], "b": [2, 5]}


def test_a_ratio_is_of_the_same_round() -> None:
    assert ratios([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == Spread(3.0, 2.0, 4.0)


def test_rounds_are_no_fewer_than_asked_for() -> None:
    assert list(rounds_for(0.0, 3)) == [0, 1, 2]


def test_nothing_judged_is_neither_met_nor_missed() -> None:
    assert (all_met([None]), all_judged([None])) == (True, None)
    assert (all_met([True, None]), all_judged([True, False])) == (True, False)


@dataclass(frozen=True)
class Row:
    name: str
    took: Spread
    more: Memory | dict[str, float]


def test_fields_are_jsons_keys_and_more_is_merged() -> None:
    rows = [Row("a", spread([1.0, 3.0]), {"p99": 2.0}), Row("b", spread([1.0]), Memory(5, 6.0))]
    first, second = Report({"rows": rows}, []).json()["rows"]  # type: ignore[misc, attr-defined]
    assert first == {"name": "a", "took": {"median": 2.0, "min": 1.0, "max": 3.0}, "p99": 2.0}
    assert (second["peak_bytes"], second["target_bytes"]) == (5, 6.0)


def test_a_report_is_drawn_with_its_verdicts() -> None:
    text = ["in [brackets]", ("half as fast", False), Table(("<what", "GB/s", ""), [("[a]", "12", True)])]
    lines = drawn(Report({}, text))
    assert lines[:2] == ["in [brackets]", "half as fast: missed"]
    assert [line.split() for line in lines[2:]] == [["what", "GB/s"], ["[a]", "12", "met"]]


def test_times_are_drawn_beside_their_targets() -> None:
    rows = [
        timed("fast", [1.5e-6, 2e-6, 9e-6], 20e-6),
        timed("long", [3.0], None),
        Timed("large", spread([1.0]), 2.0, False, Memory(7_000_000_000, 6e9)),
        Relative("over", spread([0.5, 0.75, 1.0]), 0.8, True),
    ]
    fast, long, large, over = drawn(Report({}, [times_table(rows)]))[1:]
    assert fast.split() == ["fast", "2", "us", "1.5", "us", "to", "9", "us", "20", "us", "met"]
    assert long.split()[-2:] == ["not", "judged"]
    assert large.startswith("large, 7.0 of 6 GB")
    assert over.split() == ["over", "0.75", "0.50", "to", "1.00", "0.80", "met"]


@pytest.mark.parametrize(("seconds", "text"), [(2e-6, "2 us"), (0.06, "60.0 ms"), (3.0, "3.00 s")])
def test_times_are_in_the_unit_that_is_read_best(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
