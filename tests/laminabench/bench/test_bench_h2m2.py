"""The benchmark of boards measures what it says, and judges itself by its own numbers."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from laminabench.bench import h2m2
from laminabench.bench.timing import timed
from laminabench.cli.bench_rows import render_times
from laminabench.cli.main import run
from laminabench.sim.h2m2_scenario import dynamic_trace


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few lengths, and a few requests instead of an hour of them."""
    monkeypatch.setattr(h2m2, "LENGTHS", range(512, 2049, 512))
    monkeypatch.setattr(h2m2, "resolve", lambda name, *, offline: dynamic_trace(1, iterations=8))


def test_every_row_is_judged_by_its_own_numbers() -> None:
    rows = h2m2.run(repeats=2, decisions=3)
    targets = [row["target_s"] for row in rows]
    assert targets == [h2m2.DECISION_TARGET_S] * 2 + [h2m2.SCENARIO_TARGET_S, None]
    for row in rows:
        seconds = row["seconds"]
        assert isinstance(seconds, dict)
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
    for row, judged in zip(rows, ("max", "max", "median"), strict=False):
        seconds, target_s = row["seconds"], row["target_s"]
        assert isinstance(seconds, dict)
        assert isinstance(target_s, float)
        assert row["met"] == (seconds[judged] <= target_s)
    assert rows[-1]["met"] is None


def test_times_are_written_as_long_as_they_are() -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    rows = [
        timed("fast", [1.5e-6, 2e-6, 9e-6], 20e-6),
        timed("slow", [0.06], 0.05),
        timed("long", [3.0], None),
    ]
    render_times(console, rows)
    fast, slow, long = console.export_text().splitlines()[1:]
    assert fast.split() == ["fast", "2", "us", "1.5", "us", "to", "9", "us", "20", "us", "met"]
    assert slow.split()[1:] == ["60.0", "ms", "60.0", "ms", "to", "60.0", "ms", "50.0", "ms", "missed"]
    assert long.split()[-2:] == ["not", "judged"]


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_prints(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(["bench", "h2m2", "--repeats", "1", *(["--json"] if as_json else [])])
    assert exit_.value.code == 0
    out = capsys.readouterr().out
    if as_json:
        facts = json.loads(out)
        assert facts["met"] == all(row["met"] is not False for row in facts["rows"])
    else:
        assert "the dynamic scenario: 128 iterations of 32 requests" in out
