"""Each input moves what is its own, in the direction that it should; and the gain is none where it flips."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from made_outcome import trace_of

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.deployment import parse_deployments
from laminabench.catalog.eras import load_eras
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device, load_devices, priced
from laminabench.catalog.host import parse_host
from laminabench.util.errors import UserError
from laminabench.workflows.compare.cells import Placed, cell, placed
from laminabench.workflows.compare.spec import ComparisonSpec
from laminabench.workflows.compare.systems import verdict_on as verdict_on_cell
from laminabench.workflows.replay import Workload
from laminabench.workflows.sensitivity.answer import Bar, Sensitivity
from laminabench.workflows.sensitivity.inputs import Input, inputs_of
from laminabench.workflows.sensitivity.search import EVEN, NEAR, Question, sensitivity
from laminabench.workflows.sensitivity.verdict import verdict_on

MODEL, COSTS = model("llama3-70b"), load_costs("vllm-0.14")
PAIR = ("lamina", "vllm")
SPEC = ComparisonSpec(PAIR)
# Enough for batches to be full for a while.
TRACE = trace_of([900, 3000, 400] * 500, [60, 90, 40] * 500, name="few")


def where(spec: ComparisonSpec = SPEC) -> Placed:
    return placed(spec, MODEL, TRACE, COSTS)


@pytest.fixture(scope="module")
def analysis() -> Sensitivity:
    return sensitivity(where(), Workload(), jobs=1)


def bar(analysis: Sensitivity, name: str) -> Bar:
    (one,) = (each for each in analysis.bars if each.input.name == name)
    return one


def gains(analysis: Sensitivity, name: str) -> list[float]:
    """At the low end, as it is and at the high end."""
    one = bar(analysis, name)
    at = {end.value: end.gain for end in one.ends}
    return [at.get(value, one.here) for value in (one.input.values[0], one.input.here, one.input.values[1])]


def test_with_everything_as_it_is_it_is_what_compare_says(analysis: Sensitivity) -> None:
    compared = cell(SPEC, MODEL, TRACE, COSTS)
    assert analysis.base.gain == compared.gain_per_dollar_of("lamina", "vllm")
    assert analysis.base.tbt_ms == compared.tbt_ms
    assert analysis.systems == PAIR


@pytest.mark.parametrize(
    ("name", "rising"),
    [
        ("price_h100", True),  # of which vllm has twice as many
        ("price_h20", False),
        ("host_vllm", True),
        ("host_lamina", False),
        ("memory_lamina", True),
        ("memory_vllm", False),
        ("working_vllm", True),
        ("attention_h100", False),  # vllm's alone
        ("gemm_h100", True),  # both have it, and lamina waits for it longer
    ],
)
def test_an_input_moves_the_gain_in_its_direction(analysis: Sensitivity, name: str, rising: bool) -> None:
    low, here, high = gains(analysis, name)
    assert (low < here < high) if rising else (low > here > high)


def test_only_the_system_whose_input_it_is_changes(analysis: Sensitivity) -> None:
    for one in analysis.bars:
        for end in one.ends:
            for name in PAIR:
                if one.input.of and name not in one.input.of:
                    assert end.tokens_per_s[name] == analysis.base.tokens_per_s[name], one.input.name
    assert bar(analysis, "rtt").input.of == ("lamina",)
    assert bar(analysis, "gemm_h100").input.of == PAIR
    assert bar(analysis, "attention_h100").input.of == ("vllm",)
    assert bar(analysis, "attention_h20").input.of == ("lamina",)


def test_prices_are_arithmetic(analysis: Sensitivity) -> None:
    one = bar(analysis, "price_h20")
    rate = analysis.base.tokens_per_s["lamina"] / analysis.base.tokens_per_s["vllm"]
    for end in one.ends:
        assert isinstance(end.value, float)
        assert end.gain == pytest.approx(rate * 4 * 11.06 / (2 * 11.06 + 4 * end.value) - 1)
    assert one.break_even is not None
    assert one.break_even.searched is None  # it is solved for
    # 2 h100 + 4 h20 = rate x 4 h100
    assert one.break_even.value == pytest.approx(11.06 * (4 * rate - 2) / 4)
    catalogue = priced(load_devices(), {"h20": one.break_even.value or 0.0})
    at = cell(replace(SPEC, catalogue=catalogue), MODEL, TRACE, COSTS)
    assert at.gain_per_dollar_of("lamina", "vllm") == pytest.approx(0, abs=1e-9)


def test_at_its_break_even_the_gain_is_none(analysis: Sensitivity) -> None:
    flipping = [one for one in analysis.bars if one.break_even and one.break_even.value and one.input.of]
    assert {"host_lamina", "rtt"} <= {one.input.name for one in flipping}
    chosen = where()
    requested = Question(PAIR, chosen.chosen, chosen.fitting, Workload(), [one.input for one in flipping])

    def gain(place: int, value: float) -> float:
        rates = {name: requested.replayed(place, value, name) for name in PAIR}
        return requested.point(place, value, rates).gain

    for place, one in enumerate(flipping):
        assert one.break_even is not None
        value = one.break_even.value
        assert value is not None
        assert one.break_even.searched is not None
        near = max(NEAR * value, one.input.whole)
        changes = gain(place, value - near) * gain(place, value + near) <= 0
        assert abs(gain(place, value)) < EVEN or changes, one.input.name
        assert one.break_even.searched[0] <= value <= one.break_even.searched[1]
        low, high = sorted(each for each in one.input.values if not isinstance(each, str))
        assert one.within_range == (low <= value <= high)
        assert ("outside" in one.flips) != one.within_range


def test_a_host_given_is_where_its_range_is_left_from() -> None:
    for given, here in (("9ms", 9), ("9ms,20us", "9 ms and 20 us a request")):
        assert inputs(replace(SPEC, hosts={"vllm": parse_host(given)}))["host_vllm"].here == here


@pytest.mark.parametrize("name", PAIR)
def test_the_ends_of_a_host_are_hosts_of_eras(analysis: Sensitivity, name: str) -> None:
    """Nothing is left of what the cost set has it take for each request."""
    (era,) = (each for each in load_eras().values() if each.host_ms)
    one, on = bar(analysis, f"host_{name}").input, where().chosen[name]
    for value, host in zip(one.values, (parse_host("0ms"), era.hosts[-1]), strict=True):
        costs = one.change(on, value).setup.costs
        assert msgspec.structs.replace(costs.host, origin=host.origin) == host
    compared = cell(replace(SPEC, hosts={name: era.hosts[-1]}), MODEL, TRACE, COSTS)
    assert gains(analysis, f"host_{name}")[2] == pytest.approx(compared.gain_per_dollar_of("lamina", "vllm"))


def test_a_host_that_takes_nothing_works_nowhere() -> None:
    analysis = inputs(replace(SPEC, hosts={"vllm": parse_host("0ms")}))
    assert analysis["host_vllm"].here == 0
    assert "host_async_vllm" not in analysis
    assert "host_async_lamina" in analysis


def test_where_no_request_fits_there_is_no_gain() -> None:
    long = trace_of([100_000] * 4, [60] * 4, name="long")
    chosen = placed(SPEC, MODEL, long, COSTS)
    requested = Question(PAIR, chosen.chosen, chosen.fitting, Workload(), inputs_of(chosen.chosen))
    (place,) = (place for place, one in enumerate(requested.inputs) if one.name == "memory_vllm")
    with pytest.raises(UserError) as refused:
        requested.replayed(place, 0.5, "vllm")
    assert refused.value.code == "sensitivity-no-tokens"


def test_impossible_values_are_reported_and_not_drawn(analysis: Sensitivity) -> None:
    batches = bar(analysis, "batches_lamina")
    assert [end.value for end in batches.ends] == ["1 batch"]
    assert "does not fit on 1xh100" in batches.impossible["3 batches"]
    assert batches.break_even is None


def test_bars_come_from_the_longest_with_their_sources(analysis: Sensitivity) -> None:
    spans = [one.span for one in analysis.bars]
    assert spans == sorted(spans, reverse=True)
    assert all(one.input.source for one in analysis.bars)
    kinds = {one.input.name: one.input.kind for one in analysis.bars}
    assert kinds["price_h20"] == kinds["host_lamina"] == "assumed"
    assert kinds["attention_h20"] == "measured"
    assert kinds["host_vllm"] == kinds["rtt"] == "published"
    assert kinds["gemm_h100"] == "measured"


def test_processes_find_the_same(analysis: Sensitivity) -> None:
    assert sensitivity(where(), Workload(), jobs=2).row() == analysis.row()


def inputs(spec: ComparisonSpec) -> dict[str, Input]:
    return {one.name: one for one in inputs_of(where(spec).chosen)}


def test_every_range_has_its_input_in_it() -> None:
    for one in inputs(SPEC).values():
        numbers = [value for value in (*one.values, one.here) if not isinstance(value, str)]
        if numbers:
            low, high, *here = numbers
            assert low < high, one.name
            assert all(low <= each <= high for each in here), one.name
            assert (one.searched is None) == (not one.of), one.name
            if one.searched:
                assert one.searched[0] <= low < high <= one.searched[1], one.name


def test_attention_with_a_named_kernel_ranges_over_all_kernels() -> None:
    attention = inputs(SPEC)["attention_h20"]
    # 1.08 (of many tiles), 3.40 and 3.84 TB/s.
    assert attention.values == pytest.approx((1.076 / 3.4, 3.84 / 3.4), rel=1e-3)
    assert "from fa3-128 to hpc-ops" in attention.source


def test_prices_of_purchases_have_no_range_of_rents() -> None:
    bought = {**load_devices(), "h100": replace(device("h100"), rent=None)}
    price = inputs(replace(SPEC, catalogue=bought))["price_h100"]
    assert price.kind == "assumed"
    assert price.values[1] == pytest.approx(2 * device("h100").purchase_price.usd)


def test_only_sets_that_measured_a_device_say_how_fast_it_is() -> None:
    given = {"vllm": parse_deployments("4xa100-80g", None)}
    products = inputs(replace(SPEC, given=given))["gemm_a100-80g"]
    assert (products.kind, products.here) == ("assumed", 1.0)
    assert "vidur-2024" in products.source
    assert not any(name in products.source for name in ("roofline", "v1-table3"))


def test_what_there_is_depends_on_what_is_deployed() -> None:
    alone = inputs(ComparisonSpec(("vllm", "h2m2")))
    assert "rtt" not in alone
    assert "memory_h2m2" not in alone
    assert {"price_h2m2", "host_h2m2", "max_num_seqs_h2m2", "memory_vllm"} <= set(alone)
    given = {"vllm": parse_deployments("8xh20", None)}
    one = inputs(ComparisonSpec(PAIR, given=given))
    assert one["gemm_h20"].of == ("vllm",)
    assert one["gemm_h100"].of == ("lamina",)
    assert one["attention_h20"].of == PAIR


def test_groups_have_limits_of_their_own() -> None:
    analysis = placed(
        ComparisonSpec(("vllm", "lamina"), given={"vllm": parse_deployments("8xh200:dp8ep8", None)}),
        model("deepseek-v3"),
        TRACE,
        load_costs("vllm-0.24"),
    )
    (limit,) = (one for one in inputs_of(analysis.chosen) if one.name == "max_num_seqs_vllm")
    assert (limit.here, limit.values) == (8 * 1024, (8 * 256, 8 * 1024))


def test_the_verdict_names_the_input_that_changes_most(analysis: Sensitivity) -> None:
    judged = verdict_on(analysis, where(), 100.0)
    compared = verdict_on_cell(cell(SPEC, MODEL, TRACE, COSTS))
    assert judged.cheapest == replace(compared.cheapest, percentiles_ms=judged.cheapest.percentiles_ms)
    assert judged.margin == compared.margin
    named = " and ".join(f"{name} on {analysis.deployments[name]}" for name in PAIR)
    assert f"(saturated, only {named} compared)" in judged.sentences[0]
    assert f"depends most on {analysis.bars[0].input.title}" in judged.sentences[-1]
