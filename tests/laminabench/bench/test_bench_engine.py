"""The engine's benchmarks: what was run, the contenders, what is judged, and users' mistakes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest
import transformers

from laminabench.bench import engine, engine_compare, engine_vllm
from laminabench.calibrate.models import moe_config

Facts = Callable[..., dict[str, Any]]
Shell = Callable[..., tuple[int, str, str]]
CORES = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, machine: Any, tiny: Callable[[], Any]) -> None:
    monkeypatch.setattr(engine_compare, "Machine", lambda: contextlib.nullcontext(machine))
    monkeypatch.setattr(engine, "mini_config", tiny)
    monkeypatch.setattr(engine_compare, "config_of", lambda name: tiny())
    monkeypatch.setattr(engine_compare, "BOOKKEEPING_REQUESTS", 20)
    monkeypatch.setattr(engine_compare, "BOOKKEEPING_ITERATIONS", 4)


def test_it_reports_what_was_run(facts: Facts) -> None:
    result = facts(
        "engine", "--batch", "3", "--context", "50", "--rounds", "2", "--threads", "1", "--overlap"
    )
    assert result["options"] == {"threads": 1, "backend": "python", "overlap": True, "kv_dtype": "auto"}
    assert result["threads"]["attention"] == 1
    assert (result["batch"], result["context"], result["layers"], result["rounds"]) == (3, 50, 2, 2)
    # Four projections, three of the feed-forward layer, and the head.
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96
    assert result["gemm_parameters"] == 2 * layer + 64 * 100
    assert result["kv_bytes"] == 3 * 50 * 2 * 2 * 1 * 32 * 2
    parts = sum(part["median"] for part in result["of_which"].values())
    assert 0 < parts <= 1.5 * result["iteration_s"]["max"]
    assert result["met"] == (result["ratio_met"] and result["host_met"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--threads", "-1"], "'--threads'"),
        (["--context", "70000"], "[bench-load-impossible]"),
        (["--batch", "2147483647"], "[bench-load-impossible]"),
        (["--compare", "serial,parallel"], "[bench-contender-unknown]"),
        (["--compare", "serial,expert-parallel"], "[bench-contender-model]"),
        (["--compare", "expert-parallel", "--model", "llama-tiny"], "[bench-contender-model]"),
        (["--compare", "vllm", "--vllm", "nowhere/python"], "[baseline-python-unusable]"),
        (["--compare", "serial", "--context", "70000", "--batch", "2"], "[bench-load-impossible]"),
    ],
)
def test_mistakes_are_the_users(arguments: list[str], words: str, shell: Shell) -> None:
    code, _, err = shell("engine", "-v", *arguments)
    assert code == 2
    assert words in err


@pytest.mark.skipif(CORES < 2, reason="model worker and attention worker have a core each")
def test_layouts_take_turns(facts: Facts) -> None:
    result = facts("engine", "--compare", "serial, rotational,one-process", "--batch", "4",
                   "--context", "20", "--output-tokens", "5", "--rounds", "2")  # fmt: skip
    assert list(result["contenders"]) == ["serial", "rotational", "one-process"]
    setting = [result[name] for name in ("batch", "prompt_tokens", "output_tokens", "rounds")]
    assert setting == [4, 20, 5, 2]
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


def test_experts_are_split_and_distributed_in_turns(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "moe_intermediate_size": 32}
    small = transformers.Qwen3MoeConfig(**moe_config().to_dict() | sizes | {"vocab_size": 100})
    monkeypatch.setattr(engine_compare, "moe_config", lambda: small)
    result = facts("engine", "--compare", "tensor-parallel,expert-parallel", "--batch", "4",
                   "--context", "20", "--rounds", "1")  # fmt: skip
    assert (result["model"], result["output_tokens"]) == ("moe-mini", 16)
    assert [(ratio["of"], ratio["over"]) for ratio in result["ratios"]] == [
        ("expert-parallel", "tensor-parallel")
    ]


@pytest.mark.parametrize(
    ("pair", "batch", "model", "target"),
    [
        (("one-process", "vllm"), 64, "llama-mini", 1.35),
        (("one-process", "vllm-fp32"), 64, "llama-mini", 1.35),
        (("one-process", "vllm"), 4, "llama-mini", 1.0),
        (("one-process", "vllm"), 32, "qwen2.5-3b", 1.2),
        (("rotational", "vllm"), 64, "llama-mini", 1.0),
        (("rotational", "vllm-fp32"), 64, "llama-mini", 1.0),
        (("rotational", "serial"), 64, "llama-mini", 1.25),
        (("serial", "vllm"), 64, "llama-mini", None),
    ],
)
def test_each_pair_has_its_target(
    pair: tuple[str, str], batch: int, model: str, target: float | None
) -> None:
    assert engine_compare.target(*pair, engine_vllm.Load(batch, 1024, 64, model)) == target


def test_vllm_takes_part_where_it_is(facts: Facts) -> None:
    python = os.environ.get("LAMINABENCH_VLLM")
    if not python:
        pytest.skip("LAMINABENCH_VLLM does not name the Python of `laminabench baseline setup vllm`")
    result = facts("engine", "--compare", "vllm,vllm-fp32", "--vllm", python, "--batch", "2",
                   "--context", "20", "--output-tokens", "4", "--rounds", "1")  # fmt: skip
    assert result["contenders"].keys() == {"vllm", "vllm-fp32"}
    assert all(one["tokens_per_s"]["median"] > 0 for one in result["contenders"].values())
