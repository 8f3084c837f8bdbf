"""Live replays beside their modelled twins."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from laminabench.analysis.estimate import Estimate
from laminabench.systems.registry import prepare
from laminabench.util.errors import UserError
from laminabench.workflows.replay import ReplayRequest
from laminabench.workflows.validate.twin import Twin, of_costs, same_order, twins


def twin(name: str, measured: float, predicted: float, load: str = "azure-code") -> Twin:
    numbers = {"tokens/s": Estimate(measured), "mean batch": Estimate(10.0), "TBT p50": Estimate(30.0)}
    return Twin(name, "1xhere", load, numbers, {"tokens/s": predicted, "mean batch": 10.4, "TBT p50": 33.0})


def test_errors_targets_and_order() -> None:
    one, other = twin("a", 100.0, 104.0), twin("b", 90.0, 95.0)
    assert one.errors() == pytest.approx({"tokens/s": 4, "mean batch": 4, "TBT p50": 10})
    assert one.missed() == ["TBT p50"]
    assert other.missed() == ["tokens/s", "TBT p50"]
    assert same_order([one, other])
    assert not same_order([one, twin("b", 90.0, 105.0)])
    assert same_order([one, twin("b", 90.0, 105.0, "azure-conv")])
    # Of three rounds of each, too far apart to tell.
    vague = replace(other, measured={"tokens/s": Estimate(90.0, 0.1, 2)}, predicted={"tokens/s": 105.0})
    assert same_order([one, vague])


def test_the_twin_is_the_same_replay_on_the_device_that_was_measured(core_costs: str) -> None:
    live = ReplayRequest(
        trace="azure-code", deployment="1xcpu+2xcpu", batches=2, backend="live", costs=core_costs
    )
    modelled = of_costs(live)
    assert modelled.deployment == "1xhere+2xhere"
    assert (modelled.backend, modelled.costs, modelled.batches) == ("modelled", core_costs, 2)
    with pytest.raises(UserError, match="validation-no-device"):
        of_costs(msgspec.structs.replace(live, costs="roofline"))


def test_vllm_is_one_device(core_costs: str) -> None:
    live = ReplayRequest(
        trace="azure-code",
        system="vllm",
        deployment="2xcpu",
        costs=core_costs,
        prefill="model",
        backend="live",
    )
    modelled = of_costs(live)
    assert (modelled.deployment, modelled.costs) == ("1xhere", core_costs)
    assert (modelled.prefill, modelled.max_batched_tokens) == ("colocated", None)


def test_an_engine_in_one_process_is_modelled_as_one_batch_on_one_kind_of_device(core_costs: str) -> None:
    live = ReplayRequest(
        trace="azure-code", deployment="1xcpu", prefill="model", backend="live", costs=core_costs
    )
    modelled = of_costs(live)
    assert (modelled.system, modelled.deployment) == ("vllm", "1xhere")
    assert (modelled.admission, modelled.block_size) == ("reserve", 1)
    assert (modelled.prefill, modelled.max_batched_tokens) == ("colocated", 512)
    prepare(modelled)
    larger = of_costs(msgspec.structs.replace(live, max_batched_tokens=1024))
    assert larger.max_batched_tokens == 1024


def test_what_is_refused_is_so_before_the_first_replay(core_costs: str) -> None:
    request = ReplayRequest(
        trace="azure-code", deployment="1xcpu+1xcpu", model="llama-nobody", costs=core_costs
    )
    with pytest.raises(UserError, match="catalogue-unknown-name"):
        twins([("one", request)], 1)


@pytest.mark.long
@pytest.mark.usefixtures("shared_machine")
def test_a_live_replay_and_its_twin(core_costs: str) -> None:
    same = ReplayRequest(
        trace="azure-code",
        offline=True,
        num_requests=20,
        scale_lengths=0.1,
        model="llama-tiny",
        deployment="1xcpu+1xcpu",
        kv_tokens=4000,
        costs=core_costs,
    )
    alone = msgspec.structs.replace(same, deployment="1xcpu", prefill="model")
    workers, process = twins([("one", same), ("other", alone)], 2)
    assert (workers.deployment, process.deployment) == ("1xhere+1xhere", "1xhere")
    assert workers.measured["tokens/s"].interval is not None
    assert workers.predicted["tokens/s"] > (workers.measured["tokens/s"].value or 0)
    assert process.measured.keys() == process.predicted.keys() == {*workers.measured, "TTFT p50"}
