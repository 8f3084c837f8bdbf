"""Layouts that decode in turns: who took part, what is judged, and a user's mistake as the user's."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import pytest
import transformers

from laminabench.bench import engine_compare, engine_contenders
from laminabench.cli.main import run

CORES = len(os.sched_getaffinity(0))


def tiny() -> transformers.PreTrainedConfig:
    return transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=100,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, machine: Any) -> None:
    monkeypatch.setattr(engine_compare, "Machine", lambda: contextlib.nullcontext(machine))
    monkeypatch.setattr(engine_contenders, "mini_config", tiny)
    monkeypatch.setattr(engine_compare, "BOOKKEEPING_REQUESTS", 20)
    monkeypatch.setattr(engine_compare, "BOOKKEEPING_ITERATIONS", 4)


@pytest.mark.skipif(CORES < 2, reason="model worker and attention worker have a core each")
@pytest.mark.usefixtures("small")
def test_layouts_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(["bench", "engine", "--compare", "serial, rotational,one-process", "--batch", "4", "--json",
             "--context", "20", "--output-tokens", "5", "--rounds", "2"])  # fmt: skip
    assert exit_.value.code == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["contenders"]) == ["serial", "rotational", "one-process"]
    assert (result["batch"], result["prompt_tokens"], result["output_tokens"], result["rounds"]) == (
        4,
        20,
        5,
        2,
    )
    serial = result["contenders"]["serial"]
    assert min(serial[part]["median"] for part in ("model_s", "attention_s", "host_s")) > 0
    assert serial["tokens_per_s"]["max"] == pytest.approx(4 / serial["round_s"]["min"])
    pairs = {(ratio["of"], ratio["over"]): ratio for ratio in result["ratios"]}
    assert set(pairs) == {("rotational", "serial"), ("one-process", "serial")}
    judged = pairs["rotational", "serial"]
    within = 0.5 <= judged["model_over_attention"] <= 2
    assert judged["judged"] == within
    assert judged["met"] == (judged["ratio"]["median"] >= 1.25 if within else None)
    assert pairs["one-process", "serial"]["met"] is None
    assert result["boundary_s"]["median"] > 0
    assert result["bookkeeping_requests"] == 20
    assert result["bookkeeping_met"] == (result["bookkeeping_s"]["median"] <= 0.5e-3)


@pytest.mark.skipif(CORES < 2, reason="model worker and attention worker have a core each")
@pytest.mark.usefixtures("small")
def test_what_is_printed_has_targets_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["bench", "engine", "--compare", "rotational,serial", "--batch", "2", "--context", "9",
             "--output-tokens", "3", "--rounds", "1"])  # fmt: skip
    shown = capsys.readouterr().out
    for words in ("rotational / serial: ", "target 1.25", "target 1 ms", "of 20 requests", "target 0.5 ms"):
        assert words in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--compare", "serial,parallel"],
            "'parallel' is unknown; known are serial, rotational, one-process, vllm",
        ),
        (["--compare", "vllm", "--vllm", "nowhere/python"], "there is no nowhere/python; `laminabench base"),
        (["--compare", "serial", "--context", "600"], "600: a prompt of 600 tokens"),
    ],
)
@pytest.mark.usefixtures("small")
def test_mistakes_are_the_users(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(["bench", "engine", "--batch", "2", *arguments])
    assert exit_.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_vllm_takes_part_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    python = os.environ.get("LAMINABENCH_VLLM")
    if not python:
        pytest.skip("LAMINABENCH_VLLM does not name the Python of `laminabench baseline setup vllm`")
    with pytest.raises(SystemExit) as exit_:
        run(["bench", "engine", "--compare", "vllm", "--vllm", python, "--batch", "2", "--context", "20",
             "--output-tokens", "4", "--rounds", "1", "--json"])  # fmt: skip
    assert exit_.value.code == 0
    assert json.loads(capsys.readouterr().out)["contenders"]["vllm"]["tokens_per_s"]["median"] > 0
