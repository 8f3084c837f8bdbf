"""`laminabench bench fhbn` as a person types it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from laminabench.cli.main import run

pytest.importorskip("msgpack")

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]
SHORT = ("bench", "fhbn", "--seconds", "0.05", "--engines", "shm", "--sizes", "64,4K")


def test_the_table_has_sizes_targets_and_limits(shell: Shell) -> None:
    code, out, err = shell(*SHORT)
    assert (code, err) == (0, "")
    for words in ("engine", "64 B", "4 KiB", "p50 2 us", "of a copy", "a copy of 4 KiB: "):
        assert words in out


def test_json_has_what_was_found(as_json: AsJson, tmp_path: Path) -> None:
    found = as_json(*SHORT, "--out", "run", "--plot", "fig.svg")
    assert [(row["engine"], row["bytes"]) for row in found["rows"]] == [("shm", 64), ("shm", 4096)]
    assert {"rtt_us_p50", "rtt_us_p99", "gb_per_s", "share_of_limit"} <= found["rows"][0].keys()
    assert found["skipped"] == {}
    assert "published" in (tmp_path / "fig.svg").read_text()
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["rows"] == found["rows"]


def test_notes_say_what_was_written_and_what_auto_is(shell: Shell) -> None:
    code, _, err = shell(
        "bench", "fhbn", "--seconds", "0.05", "--engines", "auto", "--sizes", "64", "--out", "run"
    )
    assert code == 0
    assert "auto is shm here" in err
    assert "wrote run" in err


def test_what_is_skipped_is_said(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, _ = shell("bench", "fhbn", "--seconds", "0.05", "--sizes", "64")
    assert code == 0
    assert "gloo skipped: torch is not installed" in out
    assert "nccl skipped: torch is not installed" in out


def test_one_core_is_a_note(shell: Shell) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        code, out, err = shell(*SHORT)
    finally:
        os.sched_setaffinity(0, before)
    assert code == 0
    assert "this machine has one core" in err
    assert "cache line" not in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sizes", "64:16X"], "--sizes '64:16X': give FIRST:LAST or a list such as 64,4K,1M"),
        (["--engines", "pigeon"], "--engines 'pigeon': there is no 'pigeon', give some of auto, shm, gloo"),
        (["--plot", "figure.gif"], "cannot draw figure.gif: give it one of the suffixes"),
        (["--seconds", "0"], "is not above zero"),
        (["--out", "."], ". exists and is no ping-pong's; it is left alone"),
    ],
)
def test_mistakes_are_one_sentence(shell: Shell, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "something").write_text("")
    code, out, err = shell("bench", "fhbn", *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.startswith(("lamina.fhbn", "laminabench.bench.fhbn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(SystemExit) as exit_:
        run(["bench", "fhbn"])
    assert exit_.value.code == 2
    assert "this needs msgpack, which is not installed: pip install" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_gpu_that_is_not_there_is_told(shell: Shell) -> None:
    code, out, err = shell("bench", "fhbn", "--device", "cuda")
    assert (code, out) == (2, "")
    assert "this benchmark needs a GPU" in err


def test_what_a_gpu_has_measured_is_a_table(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table only: what fills it here needs no GPU."""
    took = {"median": 8e-6, "min": 7e-6, "max": 0.01}
    measured = {
        "device": "some GPU",
        "path": "pinned host memory",
        "rows": [{"bytes": 4096, "one_way_s": {"channel": took}, "round_trip_s": {"graph_ahead": took}}],
    }
    monkeypatch.setattr("laminabench.bench.fhbn_cuda.run", lambda progress: measured)
    code, out, _ = shell("bench", "fhbn", "--device", "cuda")
    assert code == 0
    for words in ("some GPU", "4 KiB", "one way", "round trip", "graph_ahead", "8.00 us", "10,000 us"):
        assert words in out
