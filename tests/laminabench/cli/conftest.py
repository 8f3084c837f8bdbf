"""A command line in this process, and an engine that is none behind it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from laminabench.cli.main import run
from laminabench.systems.live.lamina import loop as live_loop
from laminabench.systems.live.lamina import memory, starting

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Run a command line; gives the exit code, stdout and stderr. Nothing is downloaded or shared.

    Its words, the first of which may be several: `shell("replay --trace azure-code", "--no-out")`.
    """
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LAMINABENCH_TRACES", raising=False)
    monkeypatch.delenv("LAMINABENCH_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    # Without --jobs work is done in this process: a pool takes seconds to start.
    monkeypatch.setattr("laminabench.util.parallel.cores", lambda: 1)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            run([*shlex.split(arguments[0]), *arguments[1:]])
        written = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, written.out, written.err

    return call


@pytest.fixture
def printed(shell: Shell) -> Callable[..., str]:
    """Run a command line that succeeds; gives what it prints."""

    def call(*arguments: str) -> str:
        code, out, err = shell(*arguments)
        assert code == 0, err
        return out

    return call


@pytest.fixture
def refused(shell: Shell) -> Callable[..., str]:
    """Run a command line that is wrong use: exit code 2, no result, and after any notes one sentence."""

    def call(message: str, *arguments: str) -> str:
        code, out, err = shell(*arguments)
        assert (code, out) == (2, ""), err
        assert message in err
        *notes, sentence = err.splitlines()
        assert sentence.startswith("laminabench: error: ")
        assert all(note.startswith("laminabench: ") for note in notes)
        return err

    return call


@pytest.fixture
def as_json(shell: Shell) -> AsJson:
    """Run a command line with --json; gives the one object on stdout."""

    def call(*arguments: str) -> dict[str, Any]:
        code, out, err = shell(*arguments, "--json")
        assert code == 0, err
        facts = json.loads(out)
        assert isinstance(facts, dict)
        return facts

    return call


@pytest.fixture(scope="session")
def started() -> Callable[..., subprocess.Popen[str]]:
    """Start a command line as a process of its own in a folder, which has the user's data too."""

    def call(folder: Path, *arguments: str, **how: Any) -> subprocess.Popen[str]:
        program = how.pop("program", ("-m", "laminabench"))
        environment = {**os.environ, "LAMINABENCH_HOME": str(folder), **how.pop("more", {})}
        environment.pop("LAMINABENCH_TRACES", None)
        ends = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(
            [sys.executable, *program, *arguments], cwd=folder, env=environment, **(ends | how)
        )

    return call


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, made_up_engine: Any) -> dict[str, Any]:
    """No process starts: an engine by a made-up clock does the work."""
    observed: dict[str, Any] = {}

    @contextlib.contextmanager
    def opened(setup: Any, tokens: int, policy: Any, warm_up: Any, listener: Any) -> Iterator[Any]:
        del listener
        engine = observed["engine"] = made_up_engine(capacity=tokens, most=setup.max_num_seqs)
        observed.update(setup=setup, warm_up=warm_up)
        if callable(policy):
            engine.priority = lambda: policy(None, 0)
        try:
            yield engine
        finally:
            observed["closed"] = True

    monkeypatch.setattr(starting, "opened", opened)
    monkeypatch.setattr(memory, "free_bytes", lambda setup: 8e9)
    clock = live_loop.Clock
    monkeypatch.setattr(live_loop, "Clock", lambda: clock(observed["engine"].now, observed["engine"].sleep))
    return observed


@pytest.fixture
def exact_model() -> dict[str, Any]:
    """A config.json in float32: what is computed again in another batch is the same there. bfloat16 rounds
    to another token here and there.
    """
    return {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 1000,
        "max_position_embeddings": 65536, "dtype": "float32", "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip


@pytest.fixture
def few(shell: Shell) -> None:
    """A small trace, few.csv, where the shell is."""
    del shell  # it has changed the folder
    rows = [f"{i / 10},{100 + 37 * i % 900},{10 + 7 * i % 50}" for i in range(60)]
    Path("few.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
