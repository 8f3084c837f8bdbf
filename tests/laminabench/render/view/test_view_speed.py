"""The explorer's benchmark judges itself by its own numbers."""

from __future__ import annotations

from laminabench.render.view import speed


def test_it_judges_by_the_median() -> None:
    report = speed.run(runs=15, repeats=1)
    judged = {row.facts["what"]: row for row in report.facts["rows"] if row.facts["target_s"] is not None}  # type: ignore[attr-defined]
    assert list(judged) == [
        "the first list of 15 Runs",
        "the list again, in another order",
        "15 Runs side by side",
    ]
    for row in judged.values():
        assert row.met == (row.facts["seconds"].median <= row.facts["target_s"])
    assert report.facts["met"] == all(row.met for row in judged.values())
