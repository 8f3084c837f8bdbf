"""--deployment auto: what it tries, what it takes, and why."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from laminabench.catalog.deployment import AUTO, parse_deployment
from laminabench.catalog.find_model import model
from laminabench.requests.replay import ReplayRequest
from laminabench.systems.live.lamina.fastest import Choice, Load, Trial, chosen, measured, one_process
from laminabench.systems.live.lamina.setup import LiveSetup
from laminabench.systems.registry import prepare
from laminabench.util.errors import UserError
from laminabench.util.progress import SILENT

REQUEST = ReplayRequest(trace="azure-code", backend="live", deployment=AUTO)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda count: monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(count)))


def _setup(deployment: str = "2xcpu", name: str = "llama-tiny") -> LiveSetup:
    return LiveSetup(model(name), name, parse_deployment(deployment), auto=True)


def _chosen(trace: Any, deployment: str, speeds: dict[str, float], share: float = 0.5) -> Choice:
    """Of layouts that are as fast as is said; what is not said is refused."""

    def measure(setup: LiveSetup, _: Load) -> Trial:
        name = str(setup.deployment)
        if name not in speeds:
            raise UserError("engine-refused", "no")
        return Trial(name, speeds[name], share)

    return chosen(_setup(deployment), REQUEST, trace, SILENT, measure)


def test_the_faster_one_is_taken_and_said(trace_of: Any, cores: Any) -> None:
    cores(2)
    trace = trace_of([100] * 5, [20] * 5)
    choice = _chosen(trace, "2xcpu", {"2xcpu": 900.0, "1xcpu+1xcpu": 500.0})
    assert choice.deployment == "2xcpu"
    assert "2xcpu 900 tokens/s, 1xcpu+1xcpu 500 tokens/s" in choice.why
    assert [each["deployment"] for each in choice.describe()["trials"]] == ["2xcpu", "1xcpu+1xcpu"]
    slower = _chosen(trace, "2xcpu", {"2xcpu": 500.0, "1xcpu+1xcpu": 900.0})
    assert (slower.deployment, slower.setup.alone) == ("1xcpu+1xcpu", False)
    # Of equal ones that with less to go wrong; and that which runs at all.
    assert _chosen(trace, "2xcpu", {"2xcpu": 5.0, "1xcpu+1xcpu": 5.0}).deployment == "2xcpu"
    assert _chosen(trace, "2xcpu", {"2xcpu": 5.0}).deployment == "2xcpu"


@pytest.mark.parametrize(
    ("share", "divided"), [(0.1, "7xcpu+1xcpu"), (0.3, "6xcpu+2xcpu"), (0.95, "4xcpu+4xcpu")]
)
def test_attention_gets_its_share_of_cores_as_heads_divide(
    share: float, divided: str, trace_of: Any, cores: Any
) -> None:
    cores(8)
    # llama-mini has 4 KV heads: 3, 5, 6 and 7 attention workers there cannot be.
    assert model("llama-mini").kv_heads == 4
    attempts: list[str] = []

    def measure(setup: LiveSetup, _: Load) -> Trial:
        attempts.append(str(setup.deployment))
        return Trial(attempts[-1], 1.0, share)

    chosen(_setup("8xcpu", "llama-mini"), REQUEST, trace_of([100], [20]), SILENT, measure)
    assert attempts == ["8xcpu", divided]


def test_a_single_core_leaves_nothing_to_measure(trace_of: Any, cores: Any) -> None:
    cores(1)
    choice = _chosen(trace_of([100], [20]), "1xcpu", {})
    assert (choice.deployment, choice.trials) == ("1xcpu", ())


def test_the_load_is_what_the_trace_has_at_once(trace_of: Any) -> None:
    many, few = trace_of([100] * 200, [20] * 200), trace_of([100, 200], [20, 40])
    assert Load.of(many, REQUEST, _setup(), 8e9) == Load(64, 110)
    assert Load.of(few, REQUEST, _setup(), 8e9) == Load(2, 165)
    closed = ReplayRequest(trace="azure-code", mode="closed", concurrency=3)
    assert Load.of(many, closed, _setup(), 8e9).sequences == 3
    # As far as memory goes.
    tight = LiveSetup(model("llama-tiny"), "llama-tiny", parse_deployment("2xcpu"), kv_tokens=500)
    load = Load.of(many, REQUEST, tight, 8e9)
    assert load.kv_tokens <= 500
    assert load.context >= 1


def test_what_only_workers_have_is_refused(cores: Any) -> None:
    cores(2)
    for more in ({"batches": 3}, {"chaos": ("random@t=1s",)}, {"prefill": 1}, {"ray": "auto"}):
        with pytest.raises(UserError) as refused:
            prepare(ReplayRequest(trace="azure-code", backend="live", deployment=AUTO, **more))
        assert refused.value.code == "deployment-no-attention"
        assert "auto" in str(refused.value)
    with pytest.raises(UserError) as refused:
        one_process(ReplayRequest(trace="azure-code", instances=2))
    assert refused.value.code == "deployment-auto-instances"
    for request in (
        ReplayRequest(trace="azure-code", deployment=AUTO),
        ReplayRequest(trace="azure-code", system="vllm", backend="live", deployment=AUTO),
    ):
        with pytest.raises(UserError) as refused:
            prepare(request)
        assert refused.value.code == "deployment-auto"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="workers have a core each")
@pytest.mark.long
def test_both_are_really_measured() -> None:
    load = Load(5, 30)
    for deployment in ("2xcpu", "1xcpu+1xcpu"):
        trial = measured(_setup(deployment), load)
        assert trial.deployment == deployment
        assert np.isfinite(trial.tokens_per_s)
        assert trial.tokens_per_s > 0
