"""Systems at equal cost or power, boards among them: what is chosen, what cells say, what is to be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest
from made_outcome import trace_of

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import Deployment, Workers, parse_deployment, parse_deployments
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import Device, device, load_devices, priced, rated
from laminabench.catalog.host import parse_host
from laminabench.catalog.network import parse_network
from laminabench.runs.summary import Requests
from laminabench.systems.registry import system
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.workflows.compare.cells import Cell, Grid, View, cell, grid_cells, made_equal
from laminabench.workflows.compare.spec import (
    ComparisonSpec,
    Equal,
    fitting_everywhere,
    longest_fitting,
    types_in,
)
from laminabench.workflows.replay import Workload, replay

MODEL, COSTS = model("llama3-70b"), load_costs("roofline")
PAIR = ("lamina", "vllm")


def requests(*lengths: tuple[int, int]) -> Trace:
    return trace_of(*zip(*lengths, strict=True), name="few")


TRACE = requests(*[(1000, 20), (4000, 30), (500, 40)] * 20)


def chosen(spec: ComparisonSpec, trace: Trace = TRACE, costs: CostSet = COSTS) -> dict[str, str]:
    assert spec.equal is not None
    result = made_equal(spec.deployed(MODEL, costs), spec, spec.equal, trace, costs)
    return {name: str(each.hardware) for name, each in result.items()}


def only(text: str, devices: Mapping[str, Device] | None = None) -> tuple[Deployment, ...]:
    return parse_deployments(text, None, devices)


def test_the_papers_deployments_stay_if_their_prices_are_about_equal() -> None:
    assert chosen(ComparisonSpec(PAIR, equal=Equal())) == {"lamina": "2xh100+4xh20", "vllm": "4xh100"}


def test_another_is_chosen_where_the_papers_is_too_dear() -> None:
    given = {"lamina": only("2xh200+4xh20")}  # $39.72 an hour, 4xh100 is $44.24
    result = chosen(ComparisonSpec(PAIR, given=given, equal=Equal(0.1)))
    assert result["lamina"] == "2xh200+4xh20"
    assert result["vllm"] in ("8xh20", "4xh200")


def test_what_takes_a_place_has_its_own_host() -> None:
    given = {"lamina": only("2xh200+4xh20")}
    spec = ComparisonSpec(PAIR, given, hosts={"lamina": parse_host("9ms")}, equal=Equal(0.1))
    assert spec.equal is not None
    result = made_equal(spec.deployed(MODEL, COSTS), spec, spec.equal, TRACE, COSTS)
    assert result["lamina"].setup.costs.host.per_step_s == pytest.approx(0.009)
    assert result["vllm"].setup.costs.host == COSTS.host


def test_devices_for_prompts_are_everyones_and_count_as_cost() -> None:
    given = {"lamina": only("2xh200+4xh20")}
    spec = ComparisonSpec(PAIR, given, prompt_budget=2048, equal=Equal(0.03))
    with pytest.raises(UserError, match="compare-no-equal-deployment"):
        cell(spec, MODEL, TRACE, COSTS)
    # As far apart as before, of about twice as much; and both are near now.
    result = cell(replace(spec, prefill=Workers(device("h100"), 8)), MODEL, TRACE, COSTS)
    assert result.deployments["lamina"] == "2xh200+4xh20, prompts on 8xh100"
    assert result.deployments["vllm"].endswith(", prompts on 8xh100")
    assert result.usd_per_hour["lamina"] == pytest.approx(39.72 + 8 * 11.06)
    assert all(summary.requests.completed == len(TRACE) for summary in result.summaries.values())


def test_prompts_that_no_engine_holds_are_left_out() -> None:
    spec = ComparisonSpec(PAIR, prompt_budget=2048, prefill=Workers(device("h100"), 2))
    on = spec.deployed(MODEL, COSTS)["lamina"]
    pool = system("lamina").build(on.setup).spec.pool
    assert pool is not None
    # A block to spare, and the first token.
    most = pool.engine.tokens_per_pool - pool.engine.block_tokens - 1
    assert most + 100 < longest_fitting("lamina", on.setup)
    saved = fitting_everywhere(requests((most, 100), (most + 1, 1)), {"lamina": on})
    assert saved.prompt_tokens.tolist() == [most]
    assert replay(saved, "lamina", on.setup, Workload()).summary.requests.completed == 1


def test_the_price_of_instances_is_that_of_all_and_their_number_stays() -> None:
    given = {"lamina": parse_deployments("2xh200+4xh20", 2), "vllm": parse_deployments("4xh100,8xh100", None)}
    result = cell(ComparisonSpec(PAIR, given, equal=Equal(0.1)), MODEL, TRACE, COSTS)
    assert result.requested == {"lamina": "2 of 2xh200+4xh20", "vllm": "1 of 4xh100 and 1 of 8xh100"}
    assert result.deployments["lamina"] == result.requested["lamina"]
    assert result.deployments["vllm"].startswith("2 of ")
    assert result.usd_per_hour["lamina"] == pytest.approx(2 * 39.72)
    assert result.usd_per_hour["vllm"] == pytest.approx(2 * 39.72, rel=0.1)
    for name, summary in result.summaries.items():
        assert summary.cost.usd_per_hour == result.usd_per_hour[name]
        assert summary.instances
        assert summary.instances.requests == [30, 30]


def test_instances_of_which_the_smaller_would_hold_less() -> None:
    given = {"vllm": parse_deployments("4xh100,8xh100", None)}
    kinds = ComparisonSpec(("vllm",), given).deployed(MODEL, COSTS)["vllm"].kinds
    small, large = (longest_fitting("vllm", setup) for setup in kinds)
    assert small < large
    some = requests((1000, 20), (small - 20, 20), (small, 20), (1000, 20))
    assert cell(ComparisonSpec(PAIR, given), MODEL, some, COSTS).dropped == 1


def test_the_best_of_all_within_the_tolerance_is_chosen() -> None:
    spec = ComparisonSpec(PAIR, equal=Equal(0.3, (device("h20"), device("h100"), device("h200"))))
    spec = replace(spec, systems=("vllm", "lamina"), given={"lamina": only("2xh200+1xh20")})
    result = chosen(spec)["lamina"]
    best = cell(replace(spec, equal=None, given={"lamina": only(result)}), MODEL, TRACE, COSTS)
    for other in ("2xh100+2xh20", "2xh200+4xh20", "2xh100+4xh20"):
        given = {"lamina": only(other)}
        assert 0.7 * 44.24 <= (given["lamina"][0].usd_per_hour or 0) <= 1.3 * 44.24, "not a rival"
        rival = cell(replace(spec, equal=None, given=given), MODEL, TRACE, COSTS)
        assert best.throughput_tokens_per_s["lamina"] >= rival.throughput_tokens_per_s["lamina"]


@pytest.mark.parametrize(("price", "allowed"), [(8.9, False), (9.05, True), (10.95, True), (11.05, False)])
def test_the_tolerance_is_a_share_of_the_reference_s_price(price: float, allowed: bool) -> None:
    dear = priced(load_devices(), {"h100": price})
    assert Equal(0.1).allows(only("1xh100", dear)[0], 10.0) is allowed


NONE_IS_EQUAL = "compare-no-equal-deployment"
DEAR = priced(load_devices(), {"h20": 40.0})
BY_POWER = Equal(0.01, amount="power")
NO_PRICE, NO_POWER = {"lamina": only("2xtpu-v6e+4xcpu")}, {"vllm": only("8xtpu-v6e")}


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (ComparisonSpec(PAIR, equal=Equal(0.01, (device("h100"),))), NONE_IS_EQUAL),
        (ComparisonSpec(PAIR, equal=Equal(0.01, (device("rtx-4080"),))), NONE_IS_EQUAL),
        (
            ComparisonSpec(PAIR, catalogue=DEAR, equal=Equal(0.1, (DEAR["h100"],))),
            NONE_IS_EQUAL,
        ),
        (ComparisonSpec(("vllm", "h2m2"), equal=BY_POWER), NONE_IS_EQUAL),
        (ComparisonSpec(PAIR, given=NO_PRICE, equal=Equal()), "deployment-no-price"),
        (ComparisonSpec(("vllm", "h2m2"), given=NO_POWER, equal=BY_POWER), "deployment-no-power"),
    ],
)
def test_missing_or_unknown_equality_is_reported(spec: ComparisonSpec, code: str) -> None:
    with pytest.raises(UserError, match=code):
        chosen(spec)


def test_a_deployment_for_nothing_is_refused() -> None:
    free = priced(load_devices(), {"h100": 0.0})
    with pytest.raises(UserError, match="deployment-no-price"):
        cell(ComparisonSpec(PAIR, catalogue=free), MODEL, TRACE, COSTS)


def test_requests_that_one_system_could_never_hold_are_left_out_for_all() -> None:
    # Half a million tokens fit Lamina's attention workers, and not what the weights leave of vLLM's devices.
    long = requests((1000, 20), (500_000, 10), (10_000_000, 10), (1000, 20))
    spec = ComparisonSpec(PAIR)
    stored = {name: longest_fitting(name, on.setup) for name, on in spec.deployed(MODEL, COSTS).items()}
    assert stored["vllm"] < 500_010 <= stored["lamina"]
    result = cell(spec, MODEL, long, COSTS)
    assert result.dropped == 2
    for summary in result.summaries.values():
        assert summary.requests == Requests(completed=2)
    with pytest.raises(UserError, match="compare-no-request-fits"):
        cell(ComparisonSpec(PAIR), MODEL, requests((10_000_000, 10)), COSTS)


def test_a_cell_compares_every_system_with_the_base() -> None:
    given = {"lamina-v1": only("2xh100+4xh20")}
    spec = ComparisonSpec((*PAIR, "lamina-v1"), given=given, workload=Workload(slo_tbt_ms=40.0))
    result = cell(spec, MODEL, TRACE, COSTS)
    rate = result.throughput_tokens_per_s
    gain, per_dollar = (of("lamina", "vllm") for of in (result.gain_of, result.gain_per_dollar_of))
    assert gain == pytest.approx(rate["lamina"] / rate["vllm"] - 1)
    assert 1 + per_dollar == pytest.approx((1 + gain) * 44.24 / 40.64)
    compared = result.sides("vllm")
    assert [side.label for side in compared.sides] == ["lamina", "vllm", "lamina-v1"]
    assert compared.ratio("throughput", 2).value == pytest.approx(rate["lamina-v1"] / rate["vllm"])
    assert compared.ratio("throughput_at_equal_cost", 0).value == pytest.approx(1 + per_dollar)
    assert compared.slo_tbt_ms == 40.0
    assert result.kinds_of_prices == ""
    assert result.row("vllm")["gain"].keys() == {"lamina", "lamina-v1"}


def test_prices_of_different_kinds_are_noted() -> None:
    given = {"lamina": only("4xa100-80g+8xrtx-3090"), "vllm": only("4xh100")}
    result = cell(ComparisonSpec(PAIR, given=given), MODEL, TRACE, COSTS)
    assert result.kinds_of_prices == "a100-80g by rent, rtx-3090 by purchase, h100 by rent"


def test_a_grid_has_the_cells_of_a_loop_in_its_order() -> None:
    models, traces, sets = [MODEL, model("llama-33b")], [TRACE], [COSTS, load_costs("vllm-0.14")]
    network = parse_network("fhbn")
    messages: list[tuple[int, int]] = []
    spec = ComparisonSpec(PAIR, network=network)
    grid = Grid([View(costs, (spec,)) for costs in sets], models, traces)
    result = grid_cells(grid, jobs=1, progress=lambda done, total: messages.append((done, total)))
    assert result == [cell(spec, of, trace, costs) for costs in sets for of in models for trace in traces]
    assert [(each.costs, each.model) for each in result] == [
        (costs, name) for costs in ("roofline", "vllm-0.14") for name in ("llama3-70b", "llama-33b")
    ]
    assert messages[-1] == (4, 4)


THREE = ("vllm", "lamina", "h2m2")
VLLM_COSTS = load_costs("vllm-0.14")
FEW = requests(*[(200 + 37 * i % 900, 10 + 7 * i % 20) for i in range(60)])
chosen_here = partial(chosen, trace=FEW, costs=VLLM_COSTS)


def compared(spec: ComparisonSpec) -> Cell:
    return cell(spec, MODEL, FEW, VLLM_COSTS)


def test_as_many_boards_are_taken_as_cost_or_draw_as_much() -> None:
    # 4xh100: $44.24 an hour and 2,800 W; up to a tenth more.
    cost = chosen_here(ComparisonSpec(THREE, equal=Equal()))
    assert (cost["vllm"], cost["lamina"], cost["h2m2"]) == ("4xh100", "2xh100+4xh20", "9xh2m2")
    power = chosen_here(ComparisonSpec(THREE, equal=Equal(amount="power")))
    assert power["h2m2"] == "6xh2m2"
    assert parse_deployment(power["lamina"]).power_w == pytest.approx(2800, rel=0.1)


def test_watts_of_the_user_decide() -> None:
    hungry = rated(load_devices(), {"h2m2": 1400.0})
    assert (
        chosen_here(ComparisonSpec(THREE, catalogue=hungry, equal=Equal(amount="power")))["h2m2"] == "2xh2m2"
    )


def test_at_its_break_even_price_a_board_s_dollar_buys_as_many_tokens() -> None:
    given = {"h2m2": only("3xh2m2")}
    spec = ComparisonSpec(THREE, given=given)
    result = compared(spec)
    assert result.break_evens("vllm").keys() == {"h2m2"}
    usd = result.break_evens("vllm")["h2m2"]["vllm"]
    even = priced(load_devices(), {"h2m2": usd})
    again = compared(replace(spec, given={"h2m2": only("3xh2m2", even)}))
    bought = {name: summary.cost.tokens_per_usd for name, summary in again.summaries.items()}
    assert bought["h2m2"] == pytest.approx(bought["vllm"])
    # It does not depend on what a board was said to cost.
    assert again.break_evens("vllm")["h2m2"]["vllm"] == pytest.approx(usd)


def test_a_base_of_boards_is_even_with_each_of_the_others() -> None:
    result = compared(ComparisonSpec(THREE))
    assert result.break_evens("h2m2").keys() == {"h2m2"}
    assert result.break_evens("h2m2")["h2m2"].keys() == {"vllm", "lamina"}
    assert result.break_evens("vllm")["h2m2"]["vllm"] == result.break_evens("h2m2")["h2m2"]["vllm"]


def test_types_of_weights_experts_and_kv() -> None:
    assert types_in("fp8") == ({"fp8"}, "fp8")
    assert types_in("bf16, experts in mxfp4") == ({"bf16", "mxfp4"}, "bf16")
    assert types_in("bf16, experts in nvfp4, KV in fp8") == ({"bf16", "nvfp4"}, "fp8")


def test_requests_at_once_are_each_system_s_own() -> None:
    result = compared(ComparisonSpec(("vllm", "h2m2"), max_num_seqs={"h2m2": 7}))
    assert result.mean_batch["h2m2"] <= 7 < result.mean_batch["vllm"]


def test_throughput_at_the_base_s_power_is_in_proportion_to_watts() -> None:
    sides = compared(ComparisonSpec(("vllm", "h2m2"))).sides("vllm")
    rate, scaled = (sides.ratio(name, 1).value for name in ("throughput", "throughput_at_equal_power"))
    assert rate is not None
    assert scaled == pytest.approx(rate * 2800 / 450)
