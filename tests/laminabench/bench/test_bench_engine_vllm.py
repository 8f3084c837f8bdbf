"""vLLM as a contender: a stand-in that decodes, one that does not start, and what is left of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from vllm_stand_in import vllm_runner

from laminabench.baselines.environment import environment_of
from laminabench.bench.engine_vllm import Load, decoding, vllm
from laminabench.catalog.deployment import parse_deployment
from laminabench.util.errors import UserError


def has_ended(folder: Path) -> bool:
    return not Path("/proc", (folder / "pid").read_text()).exists()


def test_rounds_are_timed_without_the_step_that_admits_the_requests(tmp_path: Path) -> None:
    with vllm(Load(batch=3, prompt=20, output=4), vllm_runner(tmp_path), "bf16") as contender:
        for _ in range(3):
            turn = contender()
            assert (turn.seconds, turn.parts) == (pytest.approx(0.04), {})
    assert has_ended(tmp_path)


def test_one_that_runs_decodes_another_load(tmp_path: Path) -> None:
    loads = Load(batch=3, prompt=20, output=4), Load(batch=1, prompt=90, output=2)
    python = vllm_runner(tmp_path)
    environment = environment_of(python, "cpu", "here")
    with decoding(loads, parse_deployment("1xcpu"), environment) as decode:
        # Also where it is not begun with what it was started with.
        assert decode(loads[1]).seconds == pytest.approx(0.02)
        assert decode(loads[0]).seconds == pytest.approx(0.04)
    assert has_ended(tmp_path)


@pytest.mark.parametrize("does", ["no start", "waits"])
def test_what_cannot_take_part_is_an_error_and_ends(does: str, tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="bench-vllm-failed"),
        vllm(Load(batch=2, prompt=1, output=2), vllm_runner(tmp_path, does), "bf16") as contender,
    ):
        contender()
    assert has_ended(tmp_path)


@pytest.mark.parametrize(
    ("dtype", "torchs", "number_bytes"), [("bf16", "bfloat16", 2), ("fp32", "float32", 4)]
)
def test_it_has_cores_and_room_for_all_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, torchs: str, number_bytes: int
) -> None:
    orders = []
    monkeypatch.setattr(
        "laminabench.systems.live.vllm.runner.VllmProcess.__init__",
        lambda self, command, environment, order, log, timeout_s: orders.append(order),
    )
    for end in ("close", "__exit__"):
        monkeypatch.setattr(f"laminabench.systems.live.vllm.runner.VllmProcess.{end}", lambda *_: None)
    with vllm(Load(batch=3, prompt=200, output=64), vllm_runner(tmp_path), dtype):
        pass
    (order,) = orders
    assert order["cores"] == sorted(os.sched_getaffinity(0))[:2]
    assert (order["max_num_seqs"], order["max_model_len"], order["mode"]) == (3, 265, "saturate")
    assert (order["prompt_tokens"], order["output_tokens"]) == ([200] * 3, [65] * 3)
    # Three blocks of 128 tokens a request, and the one that vLLM keeps; K and V of 16 layers, 4 heads of 64.
    assert order["kv_bytes"] == (3 * 3 + 1) * 128 * 2 * 16 * 4 * 64 * number_bytes
    assert order["dtype"] == torchs
