"""`laminabench replay --system openai` as a person uses it, against a server in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import members

from laminabench.bench.endpoint import Load, mock_server
from laminabench.runs.read import read_run
from laminabench.util.json import to_json

CHUNKS, REQUESTS = 4, 12
TRACE = ("--trace", "azure-code", "--offline", "--num-requests", str(REQUESTS), "--max-output", "4")
OPENAI = ("replay", "--system", "openai", *TRACE)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mock_server(Load(1.0, 1.0, 16, CHUNKS, 1, 0.002)) as (result, _):
        yield result


@pytest.fixture
def command(url: str) -> tuple[str, ...]:
    return (*OPENAI, "--url", url, "--model", "mock", "-q")


def test_a_saved_run_reads_as_it_was_printed(as_json: Any, command: tuple[str, ...]) -> None:
    facts = as_json(*command, "--mode", "closed", "--concurrency", "3")
    assert facts["requests"] == {"completed": REQUESTS, "rejected": 0, "unfinished": 0, "failed": 0}
    assert facts["tokens_generated"] == CHUNKS * REQUESTS
    assert (facts["backend"], facts["system"], facts["model"]) == ("live", "openai", "mock")
    assert facts["attempts"]["by_status"] == {"200": REQUESTS}
    assert facts["tokens_per_chunk"] == {"mean": 1.0, "max": 1, "even_share": 0.0}
    assert facts["cost"]["usd_per_hour"] is None
    assert facts["facts"]["in_flight_at_most"] == 3
    run = read_run(Path(facts["run_dir"]))
    assert run.outcome.chunks is not None
    assert run.outcome.chunks["tokens"].sum() == facts["tokens_generated"]
    assert to_json(run.manifest.summary.itl_ms) == facts["itl_ms"]
    for line in ("retries = 3\n", 'api = "completions"\n'):
        assert line in (run.manifest.request or "")


def test_hardware_that_is_named_gives_a_price(as_json: Any, command: tuple[str, ...]) -> None:
    facts = as_json(*command, "--deployment", "4xh100", "--price", "h100=2.5", "--no-out")
    assert facts["cost"]["usd_per_hour"] == 10.0
    assert facts["deployment"].startswith("4xh100 at http://127.0.0.1:")


def test_no_key_is_stored_or_printed(
    shell: Any, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    key.write_text("sk-of-the-file\n")
    monkeypatch.setenv("LAMINABENCH_API_KEY", "sk-of-the-environment")
    for number, more in enumerate(
        [
            (),
            ("--api-key-file", str(key)),
            ("--header", "Authorization: Bearer sk-of-the-header", "--header=X-Team: sk-of-the-team"),
        ]
    ):
        given = (*command, *more, "--out", str(tmp_path / f"run{number}"), "-v")
        monkeypatch.setattr(sys, "argv", ["laminabench", *given])
        code, out, err = shell(*given)
        assert code == 0
        assert "sk-" not in out + err
    saved = [path for path in tmp_path.rglob("*") if path.is_file() and path != key]
    assert len(saved) > 6
    assert [path for path in saved if b"sk-of" in path.read_bytes()] == []
    manifest = json.loads((tmp_path / "run2" / "run.json").read_text())
    assert "Authorization: ***" in manifest["command"]
    assert 'header = ["Authorization: ***", "X-Team: ***"]\n' in manifest["request"]


def test_a_header_cannot_add_another_one(refused: Any, command: tuple[str, ...]) -> None:
    refused("[endpoint-header]", *command, "--header", "X: a\nb", "--no-out", "-v")


@contextlib.contextmanager
def running(started: Any, folder: Path, url: str, workers: int) -> Iterator[subprocess.Popen[str]]:
    """A replay of ten minutes in a session of its own, whose clock has begun to run."""
    slow = ("--mode", "open", "--request-rate", "1", "--num-requests", "600")
    shared = ("--client-workers", str(workers), "--out", "run", "-v", "--json")
    command = (*OPENAI, "--url", url, "--model", "mock", *slow, *shared)
    with started(folder, *command, start_new_session=True) as process:
        try:
            while "the clock is running" not in (line := process.stderr.readline()):
                assert line, f"it ended with {process.wait()}"
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long(but=["2"])
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_it_and_keeps_what_has_been(started: Any, tmp_path: Path, url: str, workers: int) -> None:
    with running(started, tmp_path, url, workers) as process:
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "interrupted" in err
    facts = json.loads(out)
    assert facts["partial"]["why"] == "stopped by Ctrl-C"
    assert facts["requests"]["unfinished"] > 300
    run = read_run(tmp_path / "run")
    assert run.manifest.partial.at_s == pytest.approx(facts["partial"]["at_s"])


@pytest.mark.long(but=["1"])
@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_ends_it_and_leaves_nothing(started: Any, tmp_path: Path, url: str, workers: int) -> None:
    with running(started, tmp_path, url, workers) as process:
        # To it alone, as a supervisor does: the client processes are its own to end.
        process.send_signal(signal.SIGTERM)
        # A process with an end of its pipe would delay this.
        out, err = process.communicate(timeout=120)
        assert process.returncode == 143, err
        assert "Traceback" not in err
        assert json.loads(out)["error"]["code"] == "terminated"
        assert not (tmp_path / "run").exists()
        # Python's resource tracker ends a moment later.
        until_s = time.monotonic() + 60
        while left := members(process.pid):
            assert time.monotonic() < until_s, left
            threading.Event().wait(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_server_that_says_nothing_is_not_waited_for_after_a_signal(
    started: Any, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(120)
        where = ("--url", f"http://127.0.0.1:{mute.getsockname()[1]}", "--model", "m")
        with started(tmp_path, *OPENAI, *where, "--out", "run") as process:
            try:
                requested, _ = mute.accept()
                with requested:
                    assert requested.recv(1) == b"G"
                    process.send_signal(number)
                    # Less than the 120 s that an answer may take to begin.
                    out, err = process.communicate(timeout=60)
            finally:
                process.kill()
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
