"""A comparison of one model on one trace: a plan chooses the deployments."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from laminabench.requests.compare import CompareRequest
from laminabench.requests.plan import PlanRequest
from laminabench.requests.replay import ReplayRequest
from laminabench.traces.table import Trace, TraceMeta, make_trace
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.progress import SILENT
from laminabench.workflows.compare import planned
from laminabench.workflows.compare.systems import compare_systems

ONE = {"trace": ("t",), "model": ("llama3-70b",), "jobs": 1}
SMALL = {**ONE, "devices": "h100,h20", "systems": "vllm,lamina", "plan": PlanRequest(most_devices=6)}


def requests(arrival_s: list[float], *, arrivals: bool = True) -> Trace:
    lengths = np.full(len(arrival_s), 100, np.int32)
    meta = TraceMeta(name="t", source="file", has_arrivals=arrivals)
    return make_trace(np.asarray(arrival_s, np.float64), 10 * lengths, lengths, meta)


def sparse(*, arrivals: bool = True) -> Trace:
    return requests([0.5 * place for place in range(60)], arrivals=arrivals)


@pytest.mark.parametrize(
    "request_",
    [
        CompareRequest(),
        CompareRequest(trace=("t",)),
        CompareRequest(trace=("t", "u"), model=("m",)),
        CompareRequest(**ONE, systems="lamina,vllm"),
        CompareRequest(**ONE, deployments=("vllm=4xh100",)),
        CompareRequest(**ONE, equal_cost=True),
        CompareRequest(**ONE, eras=("vllm-2024",)),
        CompareRequest(**ONE, hosts=("vllm=5ms",)),
        CompareRequest(**ONE, replay=ReplayRequest(instances=2)),
        CompareRequest(**ONE, replay=ReplayRequest(mode="closed", concurrency=4)),
        CompareRequest(**ONE, replay=ReplayRequest(prefill="pool:2xh100")),
    ],
)
def test_what_sets_a_side_is_compared_as_it_is(request_: CompareRequest) -> None:
    assert not request_.planned


def test_a_limit_of_a_plan_has_deployments_of_named_systems_chosen() -> None:
    assert CompareRequest(**ONE).planned
    assert CompareRequest(**ONE, replay=ReplayRequest(prefill="colocated", price=("h20=1",))).planned
    assert CompareRequest(**ONE, systems="lamina,vllm", plan=PlanRequest(budget=50.0)).planned


@pytest.mark.parametrize("other", [{"equal_cost": True}, {"deployments": ("vllm=4xh100",)}, {"model": ()}])
def test_a_limit_of_a_plan_needs_something_to_choose(other: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        CompareRequest(**{**ONE, **other}, plan=PlanRequest(budget=50.0)).require_applicable()
    assert error.value.code == "compare-flag-not-applicable"
    assert "--budget" in str(error.value)


def test_without_arrival_times_there_is_one_load() -> None:
    for arrivals, loads in ((True, ["own arrivals", "saturated"]), (False, ["saturated"])):
        result = compare_systems(CompareRequest(**SMALL), SILENT, traces=[sparse(arrivals=arrivals)])
        assert [load.name for load in result.loads] == [cell.load for cell in result.cells] == loads
        assert result.base == "vllm"
        for cell in result.cells:
            assert cell.dropped == 0
            assert all(summary.tbt_ms.p99 <= cell.slo_tbt_ms for summary in cell.summaries.values())


def test_a_mode_that_is_set_is_the_only_load() -> None:
    for mode, load in (("saturate", "saturated"), ("open", "own arrivals")):
        result = compare_systems(CompareRequest(**SMALL, mode=mode), SILENT, traces=[sparse()])
        assert [each.name for each in result.loads] == [load]


def test_a_system_that_misses_the_limit_is_left_out_with_the_nearest() -> None:
    result = compare_systems(CompareRequest(**SMALL, slo_tbt_ms=20), SILENT, traces=[sparse()])
    assert [sorted(load.best) for load in result.loads] == [["lamina", "vllm"], ["vllm"]]
    assert [sorted(cell.summaries) for cell in result.cells] == [["lamina", "vllm"], ["vllm"]]
    (note, *_) = result.notes()
    assert note.startswith("lamina, saturated: ")
    assert "nearest is lamina 4xh100+2xh20" in note
    missed = result.loads[1].describe(result.plan.replay)["systems"]["lamina"]  # type: ignore[index,call-overload]
    assert missed["unmet"] == "plan-limit-missed"  # type: ignore[index,call-overload]


def test_a_load_that_no_system_serves_has_no_cell() -> None:
    result = compare_systems(CompareRequest(**SMALL, slo_tbt_ms=15), SILENT, traces=[sparse()])
    assert [cell.load for cell in result.cells] == ["own arrivals"]
    assert [sorted(load.unmet) for load in result.loads] == [["lamina"], ["lamina", "vllm"]]


def test_if_no_system_meets_the_limit_that_is_the_error() -> None:
    with pytest.raises(CheckFailedError) as error:
        compare_systems(CompareRequest(**SMALL, slo_tbt_ms=12), SILENT, traces=[sparse()])
    assert error.value.code == "plan-limit-missed"
    assert "nearest is vllm 4xh20" in str(error.value)


def test_a_base_has_to_be_within_the_limits() -> None:
    with pytest.raises(UserError) as error:
        compare_systems(CompareRequest(**SMALL, slo_tbt_ms=20, base="lamina"), SILENT, traces=[sparse()])
    assert error.value.code == "compare-base-unknown"


def test_a_long_trace_is_searched_where_it_is_busiest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "MOST_REQUESTS", 3)
    gaps = [0.0, 5, 5, 1, 1, 5, 5]
    trace = requests(list(itertools.accumulate(gaps)))
    assert planned.busiest(trace).arrival_s.tolist() == [0, 1, 2]
    drawn = planned.busiest(requests([0.0] * 7, arrivals=False))
    assert len(drawn) == 3
    short = requests([0.0, 1, 2])
    assert planned.busiest(short) is short
