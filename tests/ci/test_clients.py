"""ci/clients: what it makes of numbers that agree and that do not, and, where they are, the clients."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

CI = Path(__file__).parents[2] / "ci"
FOLDER = CI / "clients"
CLIENTS = {"openai", "vllm bench serve", "aiperf", "guidellm", "laminabench replay"}
LIMIT_S = 900


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its modules, which are a folder of scripts and no package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("load", "verdict", "server", "small_model")
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in names:
        del sys.modules[name]


@pytest.fixture
def numbers(program: Any) -> Any:
    """A client and a server that agree about a load, within what the client adds."""
    load = program.load.Load(requests=10, concurrency=2, prompt_tokens=8, output_tokens=11)
    counted = program.load.Counted(10, 80, 110, gaps=100, gaps_s=2.0, ttft_ms=50.0)
    observed = program.load.Reported(
        "c", 10, 80, 110, ("gap", 20.5), ("chunks", 40.0), ttft_ms=55.0, throughput_tokens_per_s=80.0
    )
    return SimpleNamespace(load=load, counted=counted, observed=observed)


def wrong(program: Any, numbers: Any, **changes: Any) -> list[str]:
    """The names of the numbers that are not what they have to be."""
    observed = dataclasses.replace(numbers.observed, **changes)
    return [
        line.number for line in program.verdict.lines(observed, numbers.counted, numbers.load) if not line.ok
    ]


def test_numbers_that_agree_are_let_pass(program: Any, numbers: Any) -> None:
    assert numbers.counted.between() == pytest.approx(20.0)
    # Two slots, each with eleven tokens every 50 ms + 10 x 20 ms.
    assert numbers.counted.at_most(numbers.load) == pytest.approx(88.0)
    assert wrong(program, numbers) == []
    table = program.verdict.table(program.verdict.lines(numbers.observed, numbers.counted, numbers.load))
    assert len(table.splitlines()) == 8
    assert "NOT" not in table


@pytest.mark.parametrize(
    ("changes", "numbers_wrong"),
    [
        ({"requests": 9}, ["requests", "requests"]),
        ({"requests": 11}, ["requests"]),
        ({"prompt_tokens": 81}, ["prompt tokens"]),
        ({"output_tokens": 109}, ["output tokens"]),
        ({"token_gap": ("gap", 22.5)}, ["gap (ms)"]),
        ({"token_gap": ("gap", 17.5)}, ["gap (ms)"]),
        ({"token_gap": ("gap", float("nan"))}, ["gap (ms)"]),
        ({"chunk_gap": ("chunks", 400.0)}, []),
        ({"ttft_ms": 40.0}, ["TTFT (ms)"]),
        ({"throughput_tokens_per_s": 95.0}, ["tokens/s"]),
        ({"throughput_tokens_per_s": 20.0}, ["tokens/s"]),
    ],
    ids=str,
)
def test_a_number_that_is_not_what_it_has_to_be_is_named(
    program: Any, numbers: Any, changes: dict[str, Any], numbers_wrong: list[str]
) -> None:
    assert wrong(program, numbers, **changes) == numbers_wrong


def test_what_was_counted_before_is_nobodys(program: Any) -> None:
    names = (program.server.ENDED, *program.server.TOKENS, *program.server.GAPS, *program.server.FIRST)
    before = dict.fromkeys(names, 5.0)
    counted = program.server.since(before, dict.fromkeys(names, 7.0))
    assert counted == program.load.Counted(2, 2, 2, gaps=2, gaps_s=2.0, ttft_ms=1000.0)


def test_the_tokenizer_is_a_real_one(program: Any, tmp_path: Path) -> None:
    program.small_model.make(tmp_path)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    config = json.loads((tmp_path / "config.json").read_text())
    assert len(tokenizer) == config["vocab_size"]
    message = "rin tola, besu: ünïcode"
    assert tokenizer.decode(tokenizer.encode(message)) == message
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
    )
    assert chat == f"<|user|>{message}<|end|><|assistant|>"


@pytest.mark.parametrize(
    ("environment", "made", "why"),
    [
        ({"PYTHON": "/nowhere/python"}, False, "PYTHON is /nowhere/python, which is no Python 3.11 to 3.14"),
        ({"PYTHON": sys.executable}, True, "is there and is no virtual environment"),
    ],
    ids=["no python", "no environment"],
)
def test_the_setup_says_what_is_wrong(
    tmp_path: Path, environment: dict[str, str], made: bool, why: str
) -> None:
    if made:
        (tmp_path / "theirs").mkdir()
        (tmp_path / "theirs" / "mine").write_text("keep me")
    done = subprocess.run(
        ["sh", str(CI / "clients.sh"), "ours", "theirs", "vllm"],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert why in done.stderr
    assert not made or (tmp_path / "theirs" / "mine").read_text() == "keep me"


def test_real_clients_and_our_server_say_the_same() -> None:
    pythons = [os.environ.get(name) for name in ("LAMINABENCH_CLIENTS", "LAMINABENCH_VLLM")]
    if not all(pythons):
        pytest.skip(
            "set LAMINABENCH_CLIENTS and LAMINABENCH_VLLM to the Pythons of these environments to run this "
            "(`make clients` makes the first and runs the same)"
        )
    clients, vllm = pythons
    command = [sys.executable, str(FOLDER / "check.py"), "--json", "--clients", clients, "--vllm", vllm]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    output = json.loads(done.stdout)
    imported = {f"{client}, imported" for client in CLIENTS - {"openai", "laminabench replay"}}
    assert {line["client"] for line in output["lines"]} == CLIENTS | imported
    assert [line for line in output["lines"] if not line["ok"]] == []
