"""A validation beside the one that is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laminabench.util.errors import UserError
from laminabench.workflows.validate.gate import moved, read_stored


def of(tpot: float, printed: float | None = 3.0, name: str = "one") -> dict[str, Any]:
    errors = {"tpot": {"mean": tpot, "p50": 9.0}}
    return {
        "recorded": [{"recording": name, "constants": "nothing", "errors_percent": errors}],
        "published": [{"model": "m", "deployment": "d", "error_percent": printed}],
    }


@pytest.mark.parametrize(
    ("was", "now", "worse"),
    [(1.0, 1.4, False), (1.0, 1.6, True), (-1.0, 1.4, False), (-1.0, -1.6, True), (2.0, -0.5, False)],
)
def test_half_a_point_is_allowed(was: float, now: float, worse: bool) -> None:
    (change,) = moved(of(was), of(now))
    assert (change.was, change.now, change.worse) == (was, now, worse)


def test_a_missing_error_is_worse_unless_it_was_not_requested() -> None:
    assert [change.worse for change in moved(of(1.0), of(1.0, name="two"))] == [True]
    only = {"published": of(1.0)["published"]}
    assert moved(of(1.0), only) == []
    assert moved(of(1.0, 3.0), of(1.0, 3.004)) == []


def test_groups_of_loads_are_judged_by_their_medians() -> None:
    def served(tpot: float, off: str = "") -> dict[str, Any]:
        errors = {"tpot": {"points": 3, "median": tpot, "mean": -1.0, "worst": 9.0}}
        return {"serving": {"groups": [{"device": "h200", "what": "all", "off": off, "errors": errors}]}}

    (change,) = moved(served(5.0), served(5.6))
    assert (change.what, change.worse) == ("serving all on h200: median tpot", True)
    assert moved(served(5.0, "a reason"), served(9.0, "a reason")) == []


def test_a_file_that_is_no_validation_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "validation.json"
    for text in ("[", "[]", json.dumps({"recorded": [{}]})):
        target.write_text(text)
        with pytest.raises(UserError, match="validation-not-kept"):
            read_stored(target)
    with pytest.raises(UserError, match="validation-not-kept"):
        read_stored(tmp_path / "absent.json")
    target.write_text(json.dumps(of(1.0)))
    assert read_stored(target) == of(1.0)
