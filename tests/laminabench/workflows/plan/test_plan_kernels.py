"""A plan whose winner another attention kernel changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.hardware import load_devices
from laminabench.workflows.plan.answer import Answer, answer
from laminabench.workflows.plan.measure import cluster, measure
from laminabench.workflows.plan.question import Limits, candidates
from laminabench.workflows.plan.verdict import verdict_on
from laminabench.workflows.verdict import DefaultKernels

LIMIT_MS = 100.0


def planned(draw_trace: Any, pose: Any, limit_ms: float) -> Answer:
    trace = draw_trace(7, requests=300, prompt=18_000, output=60, spread=0.1)
    question = pose(trace, limit_ms, costs="vllm-0.24")
    devices = [load_devices()[name] for name in ("h200", "h20")]
    return answer(question, list(candidates(("vllm", "afd"), question.model, devices, Limits(90.0))), jobs=1)


def test_the_winner_on_h20_is_replayed_with_vllm_s_own_kernel(draw_trace: Any, pose: Any) -> None:
    result = planned(draw_trace, pose, LIMIT_MS)
    best = result.winner
    assert best is not None
    assert "h20" in best.candidate.devices
    assert result.other.kernels == ("h20=fa3-64",)
    other = replace(result.question, costs=load_costs("vllm-0.24", result.other.kernels))
    spec = cluster(other, best.candidate)
    assert spec is not None
    point = measure(other, other.trace, best.candidate, spec)
    name = best.candidate.system
    assert (result.other.tokens_per_s[name], result.other.tbt_p99_ms[name]) == (
        point.tokens_per_s,
        point.tbt_p99_ms,
    )
    assert verdict_on(result).depends == (
        "The kernel decides: with vLLM's default on h20 (--attention-kernel h20=fa3-64) this vllm makes 7.5% "
        "fewer tokens for the same money than vllm on 8xh200."
    )


def test_a_winner_that_misses_the_limit_with_vllm_s_own_kernel(draw_trace: Any, pose: Any) -> None:
    assert verdict_on(planned(draw_trace, pose, 50.0)).depends == (
        "The kernel decides: with vLLM's default on h20 (--attention-kernel h20=fa3-64) this vllm has a "
        "TBT p99 of 57.3 ms, over the limit."
    )


def test_a_winner_without_h20_is_not_replayed_again(draw_trace: Any, pose: Any) -> None:
    question = pose(draw_trace(7), LIMIT_MS)
    result = answer(question, list(candidates(("vllm",), question.model, [load_devices()["h100"]])), jobs=1)
    assert result.other == DefaultKernels()
