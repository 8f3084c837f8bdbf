"""A plan whose winner another attention kernel changes."""

from __future__ import annotations

from typing import Any

from laminabench.catalog.hardware import load_devices
from laminabench.workflows.plan.answer import answer
from laminabench.workflows.plan.question import Limits, candidates

LIMIT_MS = 100.0


def test_a_winner_on_h20_that_vllm_s_own_kernel_changes(draw_trace: Any, pose: Any) -> None:
    trace = draw_trace(7, requests=300, prompt=18_000, output=60, spread=0.1)
    question = pose(trace, LIMIT_MS, costs="vllm-0.24")
    devices = [load_devices()[name] for name in ("h200", "h20")]
    every = list(candidates(("vllm",), question.model, devices, Limits(90.0)))
    result = answer(question, every, jobs=1)
    assert "h20" in str(result.winner.candidate.deployment).split("x")
    assert result.other_kernels == ("h20=fa3-64",)
    assert result.other_winner is not None
    assert "h200" in str(result.other_winner.candidate.deployment)
    assert result.kernel_note.startswith("with h20=fa3-64, as vLLM takes without a flag, ")
    assert result.row()["kernel_note"] == result.kernel_note


def test_a_winner_without_h20_is_not_searched_again(draw_trace: Any, pose: Any) -> None:
    question = pose(draw_trace(7), LIMIT_MS)
    result = answer(question, list(candidates(("vllm",), question.model, [load_devices()["h100"]])), jobs=1)
    assert (result.other_kernels, result.kernel_note) == ((), "")
    assert "kernel_note" not in result.row()
