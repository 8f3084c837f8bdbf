"""Live replays beside their modelled twins."""

from __future__ import annotations

from pathlib import Path

import pytest

from laminabench.analysis.estimate import Estimate
from laminabench.catalog.cost_file import load_costs, to_toml
from laminabench.errors import UserError
from laminabench.replay import ReplayRequest
from laminabench.validation.twin import Twin, of_costs, same_order, twins

# A core that nobody measured, faster than any.
HERE = """
[device.here]
title = "made up"
tflops = { bf16 = 0.3 }
memory_gb = 12
bandwidth_gb_per_s = 30
interchip_gb_per_s = 30
nic_gbit_per_s = 200
source = "made up"
"""


@pytest.fixture
def costs(tmp_path: Path) -> str:
    target = tmp_path / "here.toml"
    target.write_text(to_toml(load_costs("roofline")) + HERE)
    return str(target)


def twin(name: str, measured: float, predicted: float) -> Twin:
    numbers = {"tokens/s": Estimate(measured), "mean batch": Estimate(10.0), "TBT p50": Estimate(30.0)}
    return Twin(name, "1xhere", numbers, {"tokens/s": predicted, "mean batch": 10.4, "TBT p50": 33.0})


def test_errors_targets_and_order() -> None:
    one, other = twin("a", 100.0, 104.0), twin("b", 90.0, 95.0)
    assert one.errors() == pytest.approx({"tokens/s": 4, "mean batch": 4, "TBT p50": 10})
    assert one.missed() == ["TBT p50"]
    assert other.missed() == ["tokens/s", "TBT p50"]
    assert same_order([one, other])
    assert not same_order([one, twin("b", 90.0, 105.0)])


def test_the_twin_is_the_same_replay_on_the_device_that_was_measured(costs: str) -> None:
    live = ReplayRequest(trace="azure-code", deployment="1xcpu+2xcpu", batches=2, backend="live")
    modelled = of_costs(live, costs)
    assert modelled.deployment == "1xhere+2xhere"
    assert (modelled.backend, modelled.costs, modelled.batches) == ("modelled", costs, 2)
    with pytest.raises(UserError, match="validation-no-device"):
        of_costs(live, "roofline")


def test_what_is_refused_is_so_before_the_first_replay(costs: str) -> None:
    request = ReplayRequest(trace="azure-code", deployment="1xcpu+1xcpu", model="llama-nobody")
    with pytest.raises(UserError, match="catalogue-unknown-name"):
        twins([("one", request)], costs, 1)


@pytest.mark.long
@pytest.mark.usefixtures("shared_machine")
def test_a_live_replay_beside_its_twin(costs: str) -> None:
    same = ReplayRequest(
        trace="azure-code",
        offline=True,
        num_requests=20,
        scale_lengths=0.1,
        model="llama-tiny",
        deployment="1xcpu+1xcpu",
        kv_tokens=4000,
    )
    (found,) = twins([("one", same)], costs, 2)
    assert found.deployment == "1xhere+1xhere"
    assert found.measured["tokens/s"].interval is not None
    assert found.predicted["tokens/s"] > (found.measured["tokens/s"].value or 0)
