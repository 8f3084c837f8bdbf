"""Boards beside other systems: at equal power too, at which price they are even, and what has to be told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model, modelled
from laminabench.catalog.hardware import load_devices, priced, rated
from laminabench.compare.cells import Cell, cell
from laminabench.compare.equal import made_equal
from laminabench.compare.spec import ComparisonSpec, Equal
from laminabench.errors import UserError
from laminabench.traces.table import Trace, TraceMeta

MODEL, COSTS = model("llama3-70b"), load_costs("vllm-0.14")
THREE = ("vllm", "lamina", "h2m2")


def requests(count: int) -> Trace:
    lengths = np.array([(200 + 37 * i % 900, 10 + 7 * i % 20) for i in range(count)], np.int32).T
    return Trace(np.zeros(count), lengths[0].copy(), lengths[1].copy(), TraceMeta("few"))


TRACE = requests(60)


def chosen(spec: ComparisonSpec) -> dict[str, str]:
    assert spec.equal is not None
    setups = made_equal(spec.setups(MODEL, COSTS), spec, spec.equal, TRACE)
    return {name: str(setup.deployment) for name, setup in setups.items()}


def compared(spec: ComparisonSpec) -> Cell:
    return cell(spec, MODEL, TRACE, COSTS)


def test_as_many_boards_are_taken_as_cost_or_draw_as_much() -> None:
    # 4xh100: $44.24 an hour and 2,800 W; up to a tenth more.
    cost = chosen(ComparisonSpec(THREE, equal=Equal()))
    assert (cost["vllm"], cost["lamina"], cost["h2m2"]) == ("4xh100", "2xh100+4xh20", "9xh2m2")
    power = chosen(ComparisonSpec(THREE, equal=Equal(amount="power")))
    assert power["h2m2"] == "6xh2m2"
    assert parse_deployment(power["lamina"]).power_w == pytest.approx(2800, rel=0.1)


def test_watts_of_the_user_decide() -> None:
    hungry = rated(load_devices(), {"h2m2": 1400.0})
    assert chosen(ComparisonSpec(THREE, catalogue=hungry, equal=Equal(amount="power")))["h2m2"] == "2xh2m2"


def test_a_deployment_without_a_rating_is_not_compared_by_power() -> None:
    given = {"vllm": parse_deployment("8xtpu-v6e")}
    with pytest.raises(UserError, match="deployment-no-power"):
        chosen(ComparisonSpec(("vllm", "h2m2"), given=given, equal=Equal(amount="power")))


def test_where_no_watts_are_near_the_nearest_are_named() -> None:
    with pytest.raises(UserError, match="compare-no-equal-deployment"):
        chosen(ComparisonSpec(("vllm", "h2m2"), equal=Equal(0.01, amount="power")))


def test_at_its_break_even_price_a_board_s_dollar_buys_as_many_tokens() -> None:
    given = {"h2m2": parse_deployment("3xh2m2")}
    spec = ComparisonSpec(THREE, given=given)
    found = compared(spec)
    assert found.break_evens("vllm").keys() == {"h2m2"}
    usd = found.break_evens("vllm")["h2m2"]["vllm"]
    even = priced(load_devices(), {"h2m2": usd})
    again = compared(replace(spec, given={"h2m2": parse_deployment("3xh2m2", even)}))
    bought = {name: summary.cost.tokens_per_usd for name, summary in again.summaries.items()}
    assert bought["h2m2"] == pytest.approx(bought["vllm"])
    # It does not depend on what a board was said to cost.
    assert again.break_evens("vllm")["h2m2"]["vllm"] == pytest.approx(usd)


def test_a_base_of_boards_is_even_with_each_of_the_others() -> None:
    found = compared(ComparisonSpec(THREE))
    assert found.break_evens("h2m2").keys() == {"h2m2"}
    assert found.break_evens("h2m2")["h2m2"].keys() == {"vllm", "lamina"}
    assert found.break_evens("vllm")["h2m2"]["vllm"] == found.break_evens("h2m2")["h2m2"]["vllm"]


def test_what_is_assumed_and_in_which_type_who_is() -> None:
    found = compared(ComparisonSpec(("vllm", "h2m2")))
    (assumed,) = found.assumed
    assert "$5.26 an hour and 450 W of h2m2" in assumed
    assert found.held_in == {"vllm": "bf16", "h2m2": "int8"}
    narrow = cell(ComparisonSpec(("vllm", "h2m2")), modelled("llama3-70b@fp8"), TRACE, COSTS)
    assert narrow.held_in == {"vllm": "fp8", "h2m2": "int8"}
    # A board's arithmetic does not change with it.
    assert narrow.throughput_tokens_per_s["h2m2"] == found.throughput_tokens_per_s["h2m2"]
    assert narrow.throughput_tokens_per_s["vllm"] > found.throughput_tokens_per_s["vllm"]
    stated = rated(priced(load_devices(), {"h2m2": 4.0}), {"h2m2": 500.0})
    given = {"h2m2": parse_deployment("1xh2m2", stated)}
    assert compared(ComparisonSpec(("vllm", "h2m2"), given=given)).assumed == ()


def test_requests_at_once_are_each_system_s_own() -> None:
    found = compared(ComparisonSpec(("vllm", "h2m2"), max_num_seqs={"h2m2": 7}))
    assert found.mean_batch["h2m2"] <= 7 < found.mean_batch["vllm"]


def test_throughput_at_the_base_s_power_is_in_proportion_to_watts() -> None:
    sides = compared(ComparisonSpec(("vllm", "h2m2"))).sides("vllm")
    rate, scaled = (sides.ratio(name, 1).value for name in ("throughput", "throughput_at_equal_power"))
    assert rate is not None
    assert scaled == pytest.approx(rate * 2800 / 450)
