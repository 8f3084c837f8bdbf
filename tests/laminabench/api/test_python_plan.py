from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

import laminabench as lb
from laminabench.cli.main import run as command

FEW: dict[str, Any] = {
    "num_requests": 200,
    "costs": "vllm-0.14",
    "jobs": 1,
    "devices": ("h100", "h20"),
    "systems": ("lamina", "vllm"),
    "most_devices": 8,
}
FLAGS = (
    "--num-requests 200 --costs vllm-0.14 --jobs 1 --devices h100,h20 --systems lamina,vllm --most-devices 8"
)


@pytest.fixture(scope="module")
def plan() -> lb.Plan:
    return lb.plan("profile:azure-conv", 60, **FEW)


def test_it_is_what_the_command_finds(plan: lb.Plan, capsys: pytest.CaptureFixture[str]) -> None:
    requested = "plan --trace profile:azure-conv --slo-tbt-p99-ms 60 --no-out --json"
    with pytest.raises(SystemExit):
        command([*requested.split(), *FLAGS.split()])
    (reported,) = json.loads(capsys.readouterr().out)["answers"]
    assert plan.best is not None
    assert reported["winner"]["usd_per_million_tokens"] == plan.best.usd_per_million_tokens
    assert reported["binds"][0]["resource"] == plan.binding == plan.effects.resource[0]
    assert [each["tbt_p99_ms"] for each in reported["front"]] == list(plan.front.tbt_p99_ms)


def test_the_tables(plan: lb.Plan) -> None:
    assert plan.best is not None
    assert plan.front.usd_per_million_tokens.is_monotonic_decreasing
    assert plan.front.usd_per_million_tokens.iloc[-1] == plan.best.usd_per_million_tokens
    assert (plan.front.tbt_p99_ms <= 60).all()
    assert set(plan.front.deployment) <= set(plan.replayed.deployment)


def test_where_nothing_meets_the_limit() -> None:
    result = lb.plan("profile:azure-conv", 1, **FEW)
    assert result.best is None
    assert result.binding is None
    assert result.nearest is not None
    assert result.nearest.tbt_p99_ms > 1
    assert result.verdict.cheapest is None
    assert "Nothing serves azure-conv" in repr(result)
    assert "nearest to the limit" in result._repr_html_()
    assert result.front.empty


def test_a_frame_systems_and_prices() -> None:
    frame = pd.DataFrame({"prompt_tokens": [500] * 50, "output_tokens": [40] * 50})
    result = lb.plan(frame, 80, systems="vllm", devices="h100", price={"h100": 1.0}, jobs=1)
    assert set(result.replayed.system) == {"vllm"}
    assert result.best is not None
    assert result.best.candidate.usd_per_hour == result.best.candidate.deployment.model.count


@pytest.mark.parametrize(
    ("choices", "code"),
    [
        ({"systems": "vlm"}, "system-unknown"),
        ({"budget": 0.5}, "plan-budget-too-small"),
        ({"slo_ttft_ms": 500, "mode": "saturate"}, "plan-flag-unused"),
        ({"max_batched_tokens": 512}, "plan-flag-unused"),
        ({"num_request": 3}, "replay-key-unknown"),
    ],
)
def test_what_cannot_be_planned(choices: dict[str, Any], code: str) -> None:
    with pytest.raises(lb.UserError, match=code):
        lb.plan("profile:azure-conv", 60, **{**FEW, **choices})


def test_a_saved_run_equals_the_command_s(plan: lb.Plan) -> None:
    from laminabench.workflows.plan.stored import read_plan

    result = read_plan(plan.save("plan"))
    assert result.answers[0].costs == "vllm-0.14"


def test_a_sweep_has_a_row_a_point() -> None:
    frame = lb.traces.load("profile:azure-conv", num_requests=100)
    vary = {"batches": (1, 2), "deployment": ("2xh100+4xh20", "1xh100+1xh20")}
    result = lb.sweep(frame, vary, system="lamina", jobs=1)
    assert list(result.batches) == [1, 1, 2, 2]
    whole = result[result.deployment == "2xh100+4xh20"]
    assert whole.error.isna().all()
    own = lb.replay(frame, system="lamina", batches=2, deployment="2xh100+4xh20")
    assert whole["tbt_ms.p99"].iloc[1] == own.tbt.p99
    for vary, code in (({}, "sweep-vary-value"), ({"batch": (1,)}, "replay-key-unknown")):
        with pytest.raises(lb.UserError, match=code):
            lb.sweep(frame, vary, jobs=1)
