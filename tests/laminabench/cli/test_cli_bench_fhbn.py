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
from rich.console import Console

from laminabench.bench.fhbn import cuda
from laminabench.bench.fhbn.results import cells, text
from laminabench.bench.frame import Report, Row, spread
from laminabench.cli.bench import render
from laminabench.cli.main import run
from laminabench.errors import UserError

pytest.importorskip("msgpack")

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]
SHORT = ("bench", "fhbn", "--seconds", "0.05", "--engines", "shm", "--sizes", "64,4K")


def test_the_table_has_sizes_targets_and_limits(shell: Shell) -> None:
    code, out, err = shell(*SHORT)
    assert (code, err) == (0, "")
    for words in ("engine", "64 B", "4 KiB", "p50 2 us", "fastest copy", "a copy of 4 KiB: "):
        assert words in out


def test_json_has_what_was_found(as_json: AsJson, tmp_path: Path) -> None:
    found = as_json(*SHORT, "--out", "run", "--plot", "fig.svg")
    assert [(row["engine"], row["bytes"]) for row in found["rows"]] == [("shm", 64), ("shm", 4096)]
    expected = {"rtt_us_p50", "rtt_us_p99", "gb_per_s", "read_gb_per_s", "share_of_memcpy", "share_of_limit"}
    assert expected <= found["rows"][0].keys()
    assert found["skipped"] == {}
    assert "published" in (tmp_path / "fig.svg").read_text()
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["rows"] == found["rows"]


def test_a_picture_that_fails_does_not_take_the_result_away(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise UserError("figure-unwritable", "cannot write fig.svg: No space left on device")

    monkeypatch.setattr("laminabench.figures.fig13.draw", full)
    code, out, err = shell(*SHORT, "--plot", "fig.svg", "--json")
    assert (code, err.count("\n")) == (2, 1)
    assert "No space left" in err
    assert len(json.loads(out)["rows"]) == 2


def test_the_table_says_what_nobody_has_verified_and_fits(capsys: pytest.CaptureFixture[str]) -> None:
    def row(engine: str, size: int, *, met: bool | None = None, **facts: Any) -> Row:
        took = {"rtt_us_p50": 1e4, "rtt_us_p99": 1e5, "gb_per_s": 99.97, "read_gb_per_s": 12.3}
        shares = {"share_of_memcpy": 1.0, "share_of_limit": 0.001, "target": None}
        every = took | shares | {"engine": engine, "bytes": size} | facts
        return Row(every, cells(every), met)

    rows = [
        row("shm", 16 << 20, target={"share_of_memcpy": 0.9}, met=False),
        row("gloo", 4096),
        row("nccl", 16 << 20, share_of_memcpy=None, share_of_limit=None),
    ]
    copied = {"memcpy_gb_per_s": {str(16 << 20): 0.0123}, "channel_copy_gb_per_s": {str(16 << 20): 123.4}}
    limits = copied | {"cache_line_round_trip_us": None}
    render(Console(width=100), text(rows, {}, limits))
    shm, gloo, nccl, note, copy = capsys.readouterr().out.splitlines()[2:]
    assert shm.endswith("  100%          < 1%  90% of memcpy  missed")
    assert shm.split()[-9:-7] == ["100", "12.3"]
    assert gloo.split()[-3:] == ["-", "-", "-"]
    assert nccl.split()[0] == "nccl*"
    assert nccl.split()[-3:] == ["12.3", "-", "-"]
    assert note == "* nccl: not verified on hardware"
    assert copy == "a copy of 16 MiB: memcpy 0.0123 GB/s, as a channel copies 123 GB/s"


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
    assert "this process may use one core" in err
    assert "cache line" not in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sizes", "64:16X"], "--sizes '64:16X': give FIRST:LAST or a list such as 64,4K,1M"),
        (["--engines", "pigeon"], "--engines 'pigeon': there is no 'pigeon', give some of auto, shm, verbs"),
        (["--plot", "figure.gif"], "cannot draw figure.gif: give it one of the suffixes"),
        (["--plot", "/dev/null/figure.svg"], "cannot write /dev/null/figure.svg: /dev/null is not a dir"),
        (["--plot", "drawer.svg"], "cannot write drawer.svg: it is there and not a file"),
        (["--out", "something/run"], "/something is not a directory"),
        (["--device", "cuda", "--out", "run", "--sizes", "64"], "leave out --out, --sizes"),
        (["--seconds", "0"], "is not above zero"),
        (["--out", "."], ". exists and is not a ping-pong; it is left alone"),
    ],
)
def test_mistakes_are_one_sentence(shell: Shell, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "something").write_text("")
    (tmp_path / "drawer.svg").mkdir()
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
    for engines in ([], ["--engines", "softnic,mlx5"]):
        code, out, err = shell("bench", "fhbn", "--device", "cuda", *engines)
        assert (code, out) == (2, "")
        assert "this benchmark needs a GPU" in err


def test_what_a_gpu_has_measured_is_a_table(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table only: what fills it here needs no GPU."""
    took = spread([7e-6, 8e-6, 0.01])
    row = cuda.row("softnic", 4096, {"channel": took}, {"graph_ahead": took})
    asked = []

    def run(engines: str, **_: object) -> Report:
        asked.append(engines)
        return cuda.report("some GPU", [row], {"mlx5": "there is none"})

    monkeypatch.setattr(cuda, "run", run)
    assert shell("bench", "fhbn", "--device", "cuda")[0] == 0
    code, out, _ = shell("bench", "fhbn", "--device", "cuda", "--engines", "softnic,mlx5")
    assert (code, asked) == (0, ["shm", "softnic,mlx5"])
    for words in (
        "mlx5 skipped: there is none",
        "softnic*",
        "* softnic: a test bench",
        "some GPU",
        "not verified on hardware",
        "4 KiB",
        "one way",
        "round trip",
        "graph_ahead",
        "8.00 us",
        "10,000 us",
    ):
        assert words in out
