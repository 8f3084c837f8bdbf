"""What the commands that take a header write and print: its value is nowhere."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import laminabench as lb
from laminabench.bench.endpoint import Load, mock_server
from laminabench.render.view.app import make_app
from laminabench.render.view.index import Index

S = "sup3r-s3cret"
HEADER = f"X-Key: {S}"
TRACE = ("--trace", "azure-code", "--offline", "--num-requests", "4", "--max-output", "4", "--model", "mock")
Command = Callable[..., str]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mock_server(Load(1.0, 1.0, 16, 4, 1, 0.002)) as (result, _):
        yield result


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command line as the console script does; what it printed on both streams."""
    from laminabench.cli.main import run

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # `run` sets it
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", f"sk-{S}")

    def call(*words: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["laminabench", *words])
        with pytest.raises(SystemExit) as exit_:
            run()
        message = "".join(capfd.readouterr())
        assert exit_.value.code == code, message
        assert S not in message
        return message

    return call


def written(folder: Path) -> int:
    """How many files there are; none of them has the secret, or is named for it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if S.encode() in path.read_bytes() or S in str(path)] == []
    return len(files)


def test_commands_write_and_print_no_header(command: Command, url: str, tmp_path: Path) -> None:
    openai = ("--system", "openai", "--url", url)
    side = f"--system openai --url {url} --header '{HEADER}'"
    command("replay", *TRACE, *openai, "--header", HEADER, "--out", "runs/one", "-v")
    command("replay", "--again", "runs/one", "--url", url, "--header", HEADER, "--out", "runs/two")
    assert f"--url {url} --header 'X-Key: ***'" in command("replay", "--again", "runs/one", code=2)
    command("sweep", *TRACE, *openai, f"--header={HEADER}", "--vary", "rate-scale=1,2", "--out", "runs/sweep")
    rounds = ("--live", side, "--live", f"{side} --retries 2", "--rounds", "1", "--out", "runs/kept")
    command("compare", *TRACE, *rounds, "--report", "runs/answer.html")
    command("report", "runs/one", "runs/two", "-o", "runs/report.html")
    assert written(tmp_path) > 20
    with TestClient(make_app(Index(Path("runs")))) as client:
        assert "kept/1-1" in client.get("/").text
        for page in ("/", "/run/one", "/sweep/sweep", "/live", "/compare?run=one&run=two"):
            assert S not in client.get(page).text


@pytest.mark.parametrize(
    "words",
    [
        ("replay", *TRACE, "--header", HEADER, "--batchs", "2"),
        ("replay", *TRACE, "--header", "X-Key:", S),
        ("replay", *TRACE, "--system", "openai", "--url", f"http://me:{S}@127.0.0.1:9", "--header", HEADER),
        ("replay", *TRACE, "--system", "openai", "--url", "http://127.0.0.1:9", "--header", f"X Key: {S}"),
        ("compare", *TRACE, "--live", f"--header '{HEADER}", "--live", "--system vllm"),
        ("compare", *TRACE, "--live", f"--header X-Key: {S}", "--live", "--system vllm"),
        ("validate", "--twin", f"--system openai --header '{HEADER}'"),
        ("sweep", *TRACE, "--header", HEADER, "--vary", "nonsense=1"),
    ],
)
def test_no_error_says_a_header(command: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    command(*words, "-v", code=2)
    written(tmp_path)


@pytest.mark.usefixtures("command")
def test_a_replay_from_python_keeps_no_header(url: str, tmp_path: Path) -> None:
    run = lb.replay(
        trace="azure-code",
        system="openai",
        url=url,
        model="mock",
        header=[HEADER],
        offline=True,
        num_requests=4,
        max_output=4,
    )
    run.save("kept")
    assert S not in f"{run!r}{run}{run._repr_html_()}"
    assert written(tmp_path) > 3


def test_what_a_replay_keeps_while_it_runs_has_no_header(url: str, tmp_path: Path) -> None:
    words = ("replay", *TRACE, "--system", "openai", "--url", url, "--header", HEADER, "--out", "one")
    slow = ("--mode", "open", "--request-rate", "0.01")
    with subprocess.Popen(
        [sys.executable, "-m", "laminabench", *words, *slow, "-q"], cwd=tmp_path, env=os.environ
    ) as process:
        try:
            while process.poll() is None and not (tmp_path / "one.live").exists():
                select.select([], [], [], 0.01)
            assert process.poll() is None
            assert written(tmp_path) >= 1
        finally:
            process.kill()
    assert written(tmp_path) >= 1
