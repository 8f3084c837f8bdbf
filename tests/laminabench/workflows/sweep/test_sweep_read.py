"""A sweep's folder as another program reads it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from laminabench.runs.format import sealed, unsealed
from laminabench.util.errors import UserError
from laminabench.workflows.sweep.read import read_sweep
from laminabench.workflows.sweep.rows import TABLE, row, write
from laminabench.workflows.sweep.store import MANIFEST, opened

FLAGS = ["--trace", "my trace.csv", "--deployment", "2xh100+2xh20", "--price", "h20=2"]
VARY = ["attention=2..3", "host-async=yes,no", "seed=0,1"]
GRID = [(count, asynchronous, seed) for count in (2, 3) for asynchronous in (True, False) for seed in (0, 1)]


def result(count: int) -> dict[str, Any]:
    head = {"backend": "modelled", "deployment": f"2xh100+{count}xh20"}
    if count == 3:
        return {**head, "error": "3 do not split"}
    return {**head, "throughput_tokens_per_s": 100.0 * count, "trace": {"name": "my trace", "requests": 3}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    identity = {"laminabench": "1", "vary": VARY, "flags": FLAGS, "points": "x"}
    manifest = {"identity": identity, "points": len(GRID), "finished": None}
    place = tmp_path / "sweep"
    keys = [str(index) for index in range(len(GRID))]
    rows = [
        row({"attention-workers": count, "host-async": asynchronous, "seed": seed}, result(count))
        for count, asynchronous, seed in GRID
    ]
    with opened(place, manifest, keys) as saved:
        for key, each in zip(keys, rows, strict=True):
            saved.put(key, each)
        write(rows, place / TABLE)
        saved.describe({**manifest, "finished": len(GRID)})
    return place


def test_what_was_varied_and_what_came_of_it(folder: Path) -> None:
    result = read_sweep(folder)
    assert result.varied == ["attention-workers", "host-async", "seed"]
    assert result.metrics == ["throughput_tokens_per_s", "trace.requests"]
    assert result.column("throughput_tokens_per_s") == [200.0] * 4 + [None] * 4
    assert result.column("error") == [None] * 4 + ["3 do not split"] * 4


def test_a_point_can_be_repeated(folder: Path) -> None:
    """With its own deployment where workers were counted; a switch that is off is left out or turned off."""
    command = shlex.split(read_sweep(folder).command(5))
    assert command[:6] == ["laminabench", "replay", "--trace", "my trace.csv", "--price", "h20=2"]
    rest = command[6:]
    assert rest[:1] == ["--host-async"]
    assert rest[-4:] == ["--seed", "1", "--deployment", "2xh100+3xh20"]
    assert "--host-async" not in shlex.split(read_sweep(folder).command(2))


def test_under_way_there_is_no_table_yet(folder: Path) -> None:
    facts = unsealed(json.loads((folder / MANIFEST).read_text())) or {}
    (folder / MANIFEST).write_text(json.dumps(sealed(facts | {"finished": None})))
    next((folder / "points").iterdir()).unlink()
    result = read_sweep(folder)
    assert (result.table, result.done, result.manifest.points) == (None, 7, 8)
    assert (result.varied, result.metrics) == ([], [])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda folder: (folder / TABLE).write_bytes(b"PAR1"), "kept-damaged"),
        (lambda folder: (folder / TABLE).unlink(), "kept-damaged"),
        (lambda folder: write([row({"seed": 1}, result(2))], folder / TABLE), "kept-damaged"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "kept-damaged"),
        (lambda folder: (folder / MANIFEST).write_text('{"format": "mine"}'), "kept-another"),
        (lambda folder: (folder / MANIFEST).write_text('{"format": "laminabench sweep"}'), "kept-damaged"),
        (
            lambda folder: (folder / MANIFEST).write_text(
                '{"format": "laminabench sweep", "format_version": 2}'
            ),
            "kept-format-newer",
        ),
        (lambda folder: (folder / MANIFEST).unlink(), "kept-another"),
    ],
)
def test_what_cannot_be_read_says_so(change: Any, code: str, folder: Path) -> None:
    change(folder)
    with pytest.raises(UserError) as error:
        read_sweep(folder)
    assert error.value.code == code
