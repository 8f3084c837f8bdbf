"""The frame: what alternates, what JSON has, and how a report is drawn."""

from __future__ import annotations

from laminabench.bench.frame import (
    Report,
    Row,
    Spread,
    all_met,
    in_turns,
    ratios,
    rounds_for,
    spread,
)


def test_actions_alternate_and_each_round_s_end_is_reported() -> None:
    calls: list[str] = []
    messages: list[tuple[int, int | None]] = []
    actions = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    results = in_turns(
        actions, 2, lambda *progress: messages.append(progress), after=lambda: calls.append("-")
    )
    assert ("".join(calls), messages) == ("ab-ab-", [(0, 2), (1, 2), (2, 2)])
    assert results == {"a": [1, 4], "b": [2, 5]}


def test_a_ratio_is_of_the_same_round() -> None:
    assert ratios([2.0, 30.0, 18.0], [1.0, 10.0, 2.0]) == Spread(3.0, 2.0, 9.0)


def test_rounds_are_no_fewer_than_requested() -> None:
    assert list(rounds_for(0.0, 3)) == [0, 1, 2]


def test_what_is_not_judged_is_not_missed() -> None:
    assert all_met([Row({}, (), None), Row({}, (), True)])
    assert not all_met([Row({}, (), None), Row({}, (), False)])


def test_json_has_rows_and_spreads_as_objects() -> None:
    rows = [Row({"name": "a", "took": spread([1.0, 3.0])}, ("a",), met=True), Row({}, ())]
    assert Report({"rows": rows}, []).json() == {
        "rows": [{"name": "a", "took": {"median": 2.0, "min": 1.0, "max": 3.0}, "met": True}, {"met": None}]
    }
