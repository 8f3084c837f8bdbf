"""Eras of vLLM: sources, readings at both ends, and what a host does to throughput."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_outcome import trace_of

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.deployment import parse_deployments
from laminabench.catalog.eras import load_eras
from laminabench.catalog.find_model import model
from laminabench.catalog.host import parse_host
from laminabench.systems.registry import system
from laminabench.workflows.compare.cells import Cell, Grid, View, grid_cells
from laminabench.workflows.compare.eras import readings_of
from laminabench.workflows.compare.spec import ComparisonSpec, Reading

SPEC = ComparisonSpec(("lamina", "vllm"))
ERA, TODAY = load_eras()["vllm-2024"], load_eras()["vllm-2026"]
MODEL, OTHER = model("llama-33b"), model("llama3-70b")
TRACE = trace_of(*zip(*[(900, 40), (3000, 60), (500, 30)] * 10, strict=True), name="few")


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    views = [View(load_costs(era.costs), readings_of(SPEC, era)) for era in (ERA, TODAY)]
    return grid_cells(Grid(views, [MODEL, OTHER], [TRACE]), jobs=1)


def test_every_era_has_sources_and_a_cost_set_that_prices_the_papers_models() -> None:
    for era in load_eras().values():
        assert era.costs_source
        assert era.max_num_seqs_source
        assert era.host_source
        assert era.others
        assert bool(era.host_ms) != era.host_async
        load_costs(era.costs)
    assert ERA.host_ms == (5, 13)
    assert all(host.origin.source == ERA.host_source for host in ERA.hosts)


def test_readings_are_both_ends_and_then_all_hosts_as_slow() -> None:
    spec = ComparisonSpec(SPEC.systems, hosts={"lamina": parse_host("3ms")}, max_num_seqs={"lamina": 64})
    result = readings_of(spec, ERA)
    hosts = [{name: 1000 * host.per_step_s for name, host in each.hosts.items()} for each in result]
    assert hosts == [
        {"lamina": pytest.approx(3), "vllm": 5},
        {"lamina": pytest.approx(3), "vllm": 13},
        {"lamina": 5, "vllm": 5},
        {"lamina": 13, "vllm": 13},
    ]
    assert [each.reading.same_host for each in result if each.reading] == [False, False, True, True]
    assert all(each.max_num_seqs == {"lamina": 64} for each in result)
    (today,) = readings_of(SPEC, TODAY)
    assert today.host_async == SPEC.systems


@pytest.mark.parametrize(
    ("deployment", "limits"),
    [
        ("4xh100", (256, 1024)),
        ("4xh100:dp4", (4 * 256, 4 * 1024)),
        ("4xa100-80g", (256, 256)),
        ("4xa100-80g:dp2tp2", (2 * 256, 2 * 256)),
        ("8xl40s", (256, 256)),
    ],
)
def test_an_era_s_limit_is_of_each_engine_and_its_devices(deployment: str, limits: tuple[int, int]) -> None:
    spec = replace(SPEC, given={"vllm": parse_deployments(deployment, None)}, max_num_seqs={"lamina": 64})
    for era, limit in zip((ERA, TODAY), limits, strict=True):
        for reading in readings_of(spec, era):
            result = reading.deployed(MODEL, load_costs(era.costs))
            assert [result[name].setup.max_num_seqs for name in ("lamina", "vllm")] == [64, limit]
        # No more than an iteration has tokens for.
        few = replace(readings_of(spec, era)[0], prompt_budget=128).deployed(MODEL, load_costs(era.costs))
        engines = system("vllm").engines(few["vllm"].setup.deployment)
        assert few["vllm"].setup.max_num_seqs == 128 * engines


def test_cells_say_which_end_they_are(cells: list[Cell]) -> None:
    first = [each for each in cells if each.model == MODEL.name]
    assert [each.label for each in first] == [
        *("vllm-2024, 5 ms", "vllm-2024, 13 ms", "vllm-2024, 5 ms everywhere", "vllm-2024, 13 ms everywhere"),
        "vllm-2026",
    ]
    assert {each.band for each in first} == {"vllm-2024", "vllm-2026"}
    assert [each.limits["vllm"] for each in first] == [256] * 4 + [1024]
    row = first[1].row("vllm")
    assert (row["era"], row["hosts_alike"]) == ("vllm-2024", False)
    assert row["host"] == {
        "lamina": {"per_step_ms": pytest.approx(2), "per_request_us": pytest.approx(20), "behind": False},
        "vllm": {"per_step_ms": 13, "per_request_us": 0, "behind": False},
    }


def test_a_slower_host_makes_every_step_longer_and_a_gain_linear_in_it(cells: list[Cell]) -> None:
    fast, slow, equal, _, _ = (each for each in cells if each.model == MODEL.name)
    vllm, lamina = ([each.tbt_ms[name] for each in (fast, slow)] for name in ("vllm", "lamina"))
    assert vllm[0] is not None
    assert vllm[1] == pytest.approx(vllm[0] + 8, abs=0.01)
    assert lamina[0] == lamina[1]
    # The systems that readings share are replayed once.
    assert fast.summaries["lamina"] is slow.summaries["lamina"]
    assert fast.summaries["vllm"] is equal.summaries["vllm"]
    gains = [each.gain_of("lamina", "vllm") for each in (fast, slow)]
    assert (1 + gains[1]) / (1 + gains[0]) == pytest.approx((vllm[0] + 8) / vllm[0], rel=0.02)


def test_kernels_of_another_set_are_named() -> None:
    (today,) = readings_of(SPEC, TODAY)
    (result,) = grid_cells(Grid([View(load_costs("vllm-0.14"), (today,))], [MODEL], [TRACE]), jobs=1)
    assert result.band == result.label == "vllm-2026, vllm-0.14"
    assert str(Reading(ERA, "5 ms", same_host=True)) == "vllm-2024, 5 ms everywhere"
