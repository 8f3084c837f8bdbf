"""`laminabench replay --emulate`: live workers that wait as long as devices would take that are not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from laminabench.cli.flags import parsed_line
from laminabench.requests.replay import ReplayRequest
from laminabench.runs.manifest import NUMBERS, Backend
from laminabench.runs.read import read_run
from laminabench.systems.registry import prepare
from laminabench.workflows.validate.emulated import Agreement, agreement

FEW = "--trace azure-conv --offline --num-requests 5 --scale-lengths 0.02"
EMULATED = f"{FEW} --backend live --emulate h100,h20"
# An iteration of two batches then takes a tenth of a second, however busy this machine is.
SMALL = f"{EMULATED} --model llama3.1-8b --deployment 1xh100+2xh20 --slowdown 10"


def prepared(flags: str) -> Any:
    return prepare(ReplayRequest(**parsed_line(flags)))


@pytest.mark.usefixtures("shared_machine")
def test_live_workers_keep_the_pace_of_the_modelled_cluster(as_json: Any, printed: Any) -> None:
    """Its label, its tokens, and times within a bound that a busy machine keeps."""
    facts = as_json(f"replay {SMALL} -q", "--out", "kept")
    modelled = as_json(
        f"replay {FEW} --model llama3.1-8b --deployment 1xh100+2xh20 --host 0ms -q", "--no-out"
    )
    assert (facts["backend"], facts["deployment"]) == ("emulated", "1xh100+2xh20")
    assert facts["tokens_generated"] == modelled["tokens_generated"]
    assert facts["requests"]["completed"] == 5
    assert facts["kv"]["capacity_tokens"] == modelled["kv"]["capacity_tokens"] > 1_000_000
    assert facts["schedule"]["violations"] == []
    assert facts["costs_set"] == "vllm-0.24"
    pace = facts["facts"]["pace"]
    assert pace["slowdown"] == 10
    # Where this machine is too slow all the same, it says so.
    if pace["kept"]:
        assert facts["tbt_ms"]["p50"] == pytest.approx(modelled["tbt_ms"]["p50"], rel=0.15)
    assert facts["tbt_ms"]["p50"] > 0.95 * modelled["tbt_ms"]["p50"]
    run = read_run(Path("kept"))
    assert (run.manifest.backend, NUMBERS[run.manifest.backend]) == ("emulated", "emulated")
    assert run.outcome.iterations["size"].sum() == facts["tokens_generated"]
    assert np.nanmax(run.outcome.requests["finished_s"]) < 16
    again = printed("replay --again kept --print-config")
    assert 'emulate = "h100,h20"\n' in again
    assert "slowdown = 10.0\n" in again
    printed("report kept -o page.html")
    assert 'class="badge emulated">emulated<' in Path("page.html").read_text()


def test_every_backend_has_a_word_for_its_numbers() -> None:
    assert NUMBERS.keys() == set(get_args(Backend))


def test_the_engine_waits_as_long_as_the_spec_says() -> None:
    result = prepared(f"{EMULATED} --slowdown 4")
    spec, model = result.built.spec, result.setup.engine_model()
    assert str(result.deployment) == "2xh100+4xh20"
    assert (model.layers, model.ranks, model.heads, model.pools) == (80, 2, 4, 1)
    assert result.kv_tokens(result.setup, None) == spec.tokens_per_pool
    assert result.setup.max_num_seqs == spec.max_requests
    at = 100
    assert model.mid_slice[at] == round(spec.timing.mid_slice[at] * 4e9)
    assert model.attention[at] == round(spec.timing.attention_fixed[at] * 4e9)
    assert model.per_token[at] == pytest.approx(spec.timing.attention_per_token[at] * 4e9)
    assert model.q_lead[at] == round(spec.timing.q_lead[at] * 4e9) > 0
    assert not model.migration.any()  # there is one replica
    assert (
        prepared(f"{EMULATED} --deployment 4xh100+4xh20 --batches 3").setup.engine_model().migration[at] > 0
    )


@pytest.mark.parametrize(
    ("flags", "deployment"),
    [
        ("--emulate h200,h20", "2xh200+4xh20"),
        ("--emulate h100", "2xh100+4xh100"),
        ("--emulate h200,h20 --model qwen3-235b-a22b", "2xh200+2xh20"),
        ("--emulate H100,h20 --deployment 4xh100+8xh20", "4xh100+8xh20"),
    ],
)
def test_which_deployment_it_is(flags: str, deployment: str) -> None:
    assert str(prepared(f"{FEW} --backend live {flags}").deployment) == deployment


@pytest.mark.long
@pytest.mark.usefixtures("shared_machine")
def test_workers_that_are_killed_are_replaced_and_wait_on(as_json: Any) -> None:
    facts = as_json(f"replay {SMALL} -q --chaos attention:1@tokens=6 --chaos model:0@tokens=12", "--no-out")
    assert facts["faults_in_all"]["faults"] == 2
    assert facts["requests"]["completed"] == 5


@pytest.mark.long
@pytest.mark.usefixtures("shared_machine")
@pytest.mark.parametrize(
    "layout",
    [
        "2xh100+1xh20 --batches 3",
        "1xh100+2xh20 --partition requests",
        "2xh100+2xh20 --batches 1",
        "2xh100+1xh20",
    ],
)
def test_it_agrees_with_the_modelled_cluster(layout: str) -> None:
    """By a wide bound, for machines that do other things too; `validate emulated` has the narrow one."""
    few = "--trace azure-conv --offline --num-requests 12 --scale-lengths 0.05"
    flags = f"{few} --emulate h100,h20 --model llama3.1-8b --slowdown 24 --deployment {layout}"
    result = agreement(layout, ReplayRequest(**parsed_line(flags)))
    # Where the host is late a window may have too few tokens for a TBT.
    assert result.pace["kept"] is False or abs(result.differences().get("TBT p50", 0.0)) < 12
    assert result.differences()


def test_a_missing_number_is_requested() -> None:
    pace = {"kept": True, "late_share": 0.0}
    result = Agreement(
        "", {"tokens/s": 101.0}, {"tokens/s": 100.0, "TBT p50": 5.0}, 0.1, {"tokens/s": 9.0}, pace
    )
    assert result.differences() == {"tokens/s": pytest.approx(1.0)}
    assert result.missed() == ["TBT p50"]
