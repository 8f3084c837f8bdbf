"""What a sweep's directory keeps, for whom, and what it survives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laminabench.errors import UserError
from laminabench.sweeps.kept import MANIFEST, POINTS, check, key_of, opened

IDENTITY = {"laminabench": "1 (commit a)", "vary": ["batches=1,2"], "flags": ["--trace", "t"], "points": "x"}
KEYS = ["a", "b", "c"]


def manifest(**other: Any) -> dict[str, Any]:
    return {"identity": {**IDENTITY, **other}, "finished": None}


def test_what_is_finished_is_found_again(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "sweep"
    with opened(place, manifest(), KEYS) as kept:
        assert kept.found == {}
        kept.put("a", {"mean_batch": 1.5})
        kept.put("c", {"error": "does not fit"})
    with opened(place, manifest(), KEYS) as kept:
        assert kept.found == {"a": {"mean_batch": 1.5}, "c": {"error": "does not fit"}}
        kept.forget_failed()
        assert list(kept.found) == ["a"]
        kept.describe({**manifest(), "finished": 3})
    assert json.loads((place / MANIFEST).read_text())["finished"] == 3


def test_a_damaged_point_is_none(tmp_path: Path) -> None:
    with opened(tmp_path / "sweep", manifest(), KEYS) as kept:
        kept.put("a", {"x": 1})
        kept.put("b", {"x": 2})
    (tmp_path / "sweep" / POINTS / "a.json").write_text('{"x": ')
    with opened(tmp_path / "sweep", manifest(), KEYS) as kept:
        assert kept.found == {"b": {"x": 2}}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"laminabench": "2"}, "by laminabench 1 (commit a): name another --out"),
        ({"vary": ["batches=1"]}, "with --vary batches=1,2: name"),
        ({"flags": []}, "with the flags --trace t: name"),
        ({}, "of a trace, a model or prices that have changed since: name"),
    ],
)
def test_another_sweep_is_refused(tmp_path: Path, other: dict[str, Any], said: str) -> None:
    with opened(tmp_path / "sweep", manifest(), KEYS) as kept:
        kept.put("a", {"x": 1})
    with (
        pytest.raises(UserError) as error,
        opened(tmp_path / "sweep", manifest(points="y", **other), KEYS),
    ):
        pass
    assert f"{tmp_path / 'sweep'} has another sweep, {said}" in str(error.value)
    with opened(tmp_path / "sweep", manifest(), KEYS) as kept:
        assert kept.found == {"a": {"x": 1}}


def test_the_same_points_said_otherwise_are_the_same_sweep(tmp_path: Path) -> None:
    with opened(tmp_path / "sweep", manifest(), KEYS) as kept:
        kept.put("a", {"x": 1})
    with opened(tmp_path / "sweep", manifest(vary=["batches=1..2"]), KEYS) as kept:
        assert list(kept.found) == ["a"]


def test_what_is_not_a_sweep_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("")
    with pytest.raises(UserError, match="exists and is not a sweep"):
        check(tmp_path, IDENTITY)
    (tmp_path / MANIFEST).write_text('{"format": "something else"}')
    with pytest.raises(UserError, match="exists and is not a sweep"):
        check(tmp_path, IDENTITY)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        opened(tmp_path, manifest(), KEYS),
        pytest.raises(UserError, match="is in use"),
        opened(tmp_path, manifest(), KEYS),
    ):
        pass


def test_a_key_is_of_all_facts_in_any_order() -> None:
    assert key_of({"a": 1, "b": [2.5, None]}) == key_of({"b": [2.5, None], "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})
