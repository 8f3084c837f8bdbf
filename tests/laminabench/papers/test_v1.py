from __future__ import annotations

import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.catalog.step import model_step
from laminabench.papers.v1 import served
from laminabench.papers.v1.estimate import homogeneous, offloaded
from laminabench.papers.v1.experiments import with_reading
from laminabench.papers.v1.parts import (
    implied_mfu,
    least_bandwidth,
    parameters,
)
from laminabench.papers.v1.testbed import (
    DERIVED,
    LAMINA,
    ROTATIONAL,
    VLLM,
    WAYS,
    deployment,
    derived,
    longest_request,
    measured,
    most_requests,
    point,
    setup,
    sweep,
    usd,
)


@pytest.mark.parametrize(("column", "half"), [("$/GB", 0.5), ("$/(GB/s)", 0.005)])
def test_table_1_rounds_to_the_printed_numbers(column, half, made) -> None:
    frame = made("v1-table1").frame
    assert (abs(frame[column] - frame[f"published {column}"]) <= half + 1e-9).all()


def test_alpha_is_what_both_memory_and_bandwidth_are_cheaper_by(made) -> None:
    claim = next(claim for claim in made("v1-table1").claims if claim.what.startswith("alpha"))
    # An A100's dollars a GB over an RTX 3090's; an H100's dollars a GB/s over an Arc A770's.
    assert claim.ours == pytest.approx((17500 / 80 / (1600 / 24), 36500 / 3350 / (350 / 560)))


def test_least_bandwidth_is_section_4_2s_formula() -> None:
    shape, card = model("llama-13b"), device("a100-80g-sxm")
    # 4 e d B L bytes while 2 N B operations are done at half of 312 TFLOP/s; any B will do.
    by_hand = 4 * 2 * 5120 * 7 * 40 / (2 * parameters(shape) * 7 / (0.5 * 312e12))
    assert least_bandwidth(shape, card, 1, 0.5) == pytest.approx(by_hand)
    assert implied_mfu(shape, card, 1, by_hand) == pytest.approx(0.5)
    assert least_bandwidth(shape, card, 4, 0.5) == pytest.approx(4 * by_hand)


def test_table_3_implies_a_utilisation_of_all_devices_together() -> None:
    card = device("a100-80g-sxm")
    assert 100 * implied_mfu(model("llama-13b"), card, 1, 4.90e9) == pytest.approx(24.6, abs=0.1)
    assert 100 * implied_mfu(model("llama-65b"), card, 4, 15.90e9) == pytest.approx(31.6, abs=0.1)
    # Of one device, LLaMA-65B's would be more than there is.
    assert implied_mfu(model("llama-65b"), card, 1, 15.90e9) > 1


def test_memory_devices_gain_with_what_money_buys_and_with_context() -> None:
    shape, card, ideal = model("llama-13b"), device("a100-80g"), load_costs("roofline")
    by_alpha = [offloaded(ideal, shape, card, card, alpha, 512) for alpha in (1.0, 3.27, 8.0)]
    assert by_alpha == sorted(by_alpha)
    assert by_alpha[0] < by_alpha[-1]
    gains = [
        offloaded(ideal, shape, card, card, 3.27, context) / homogeneous(ideal, shape, card, context)
        for context in (128, 512, 4096)
    ]
    assert gains == sorted(gains)


def test_the_testbed_holds_as_many_requests_as_its_memory() -> None:
    costs = load_costs("roofline")
    per_token = 2 * 2 * 40 * 5120
    usable = 0.9 * 40 * 2**30
    of_one = int((usable - 1e9) // per_token) // 512
    assert most_requests(LAMINA, setup(LAMINA, "llama-13b", costs), 512) == 3 * of_one == 267
    left = int((usable - 2e9 - model("llama-13b").weight_bytes) // per_token)
    assert most_requests(VLLM, setup(VLLM, "llama-13b", costs), 512) == left // 512 == 25
    assert longest_request(VLLM, setup(VLLM, "llama-13b", costs)) == left // 16 * 16


def test_memory_devices_cost_what_an_rtx_3090_s_memory_does() -> None:
    assert usd(deployment(VLLM, "llama-13b")) == 17500
    assert usd(deployment(LAMINA, "llama-13b")) == pytest.approx(17500 + 3 * 40 * 1600 / 24)
    assert usd(deployment(LAMINA, "llama-33b", 4)) == pytest.approx(2 * 17500 + 4 * 40 * 1600 / 24)


@pytest.mark.long
def test_twelve_memory_devices_would_reach_the_paper_s_largest_batch(claim) -> None:
    costs = load_costs("roofline")
    per_token = 2 * 2 * 60 * 6656
    pool = int((0.9 * 40 * 2**30 - 1e9) // per_token) // 2048
    assert most_requests(LAMINA, setup(LAMINA, "llama-33b", costs, 12), 2048) == 12 * pool == 132
    assert "12 are nearest to the upper end with 66" in claim("v1-fig12", "largest batch").experiment


@pytest.mark.parametrize("way", WAYS)
def test_a_point_is_one_batch_from_beginning_to_end(way) -> None:
    result = point(way, setup(way, "llama-13b", load_costs("vllm-0.14")), 512, 16)
    # A batch of 16, or two of 8 that take turns.
    assert result.tokens_per_s == pytest.approx(
        16 / (result.tbt_ms / 1000), rel=0.15 if way == ROTATIONAL else 1e-6
    )
    assert (result.network_ms == pytest.approx(0, abs=1e-6)) == (way == VLLM)
    if way == LAMINA:
        # At the least a round trip for each of 40 layers.
        assert result.network_ms >= 40 * 33e-3


def test_a_sweep_ends_with_what_fits() -> None:
    result = sweep(VLLM, "llama-13b", load_costs("roofline"), 512, (1, 8, 64))
    assert [each.batch for each in result] == [1, 8, 25]


@pytest.mark.long
def test_ratios_are_of_largest_batches_and_of_equal_ones(made) -> None:
    frame = made("v1-fig12").frame
    largest = served.ratios(frame, "batch")
    assert largest["vllm-0.14", "llama-13b", 512] == pytest.approx(267 / 25)
    rotation = served.ratios(frame, "rotation")
    assert set(rotation.index.get_level_values("batch")) >= {129, 256}
    rows = frame[(frame["model"] == "llama-13b") & (frame["context"] == 512) & (frame["batch"] == 256)]
    one = rows[rows["costs"] == "vllm-0.14"].set_index("system")["tokens_per_s"]
    assert rotation["vllm-0.14", "llama-13b", 512, 256] == pytest.approx(one[ROTATIONAL] / one[LAMINA])


def test_figure_5_knows_the_share_of_an_a100_and_no_gain_of_one_device(made) -> None:
    claim = made("v1-fig5").claims[0]
    assert claim.ours == pytest.approx(31.25)
    frame = made("v1-fig5").frame
    assert (frame[frame["devices"] == 1]["speed_up"] == 1).all()
    assert frame["speed_up"].max() < 4


def test_with_reading_steps_fall_from_table_3_s_to_that_of_the_weights_by_the_data_sheet() -> None:
    slow, shape, card = load_costs(DERIVED), model("llama-13b"), device("a100-40g")
    one, falling, first = (
        model_step(costs, shape, card, 1, batch).gemm_s
        for costs, batch in ((with_reading(slow), 1), (with_reading(slow), 64), (slow, 128))
    )
    layers = 2 * shape.weights().matrices
    assert one == pytest.approx(layers / 1555e9)
    assert one < falling < first == model_step(with_reading(slow), shape, card, 1, 128).gemm_s


@pytest.mark.parametrize("name", ["v1-fig12", "v1-fig13", "v1-fig14"])
@pytest.mark.long
def test_what_table_3_implies_is_beside_the_measured_sets_and_in_no_band(name, made, context) -> None:
    frame, claims = made(name).frame, made(name).claims
    assert set(measured(frame)["costs"]) == set(context.cost_sets)
    assert set(derived(frame)["costs"]) == {DERIVED} == set(frame["costs"]) - set(context.cost_sets)
    again = [claim for claim in claims if "speed that Table 3 implies" in claim.what]
    assert again
    for each in again:
        assert "paper's own numbers" in each.rests_on
        assert DERIVED in each.how
    for each in set(claims) - set(again):
        assert DERIVED not in each.how


def test_figure_6_s_utilisations_are_one_read_and_two_operations_an_element(made) -> None:
    frame = made("v1-fig6").frame
    own = frame[frame["device"] == "h100"]
    # An operation for each byte of bf16 KV.
    assert (own["mfu_percent"] / own["mbu_percent"]).to_numpy() == pytest.approx(3350e9 / 989e12)
    assert own["mbu_percent"].max() < 100


def test_figure_15_adds_the_round_trip_to_the_bytes(made) -> None:
    frame = made("v1-fig15").frame
    first = frame[frame["batch"] == 1].set_index("what")["us"]
    sent = 4 * 2 * 5120
    assert first["vanilla RDMA"] == pytest.approx(100 + sent / 17.2e3)
    assert first["polling and GPUDirect"] == pytest.approx(33 + sent / 24.2e3)
    by_what = {claim.what: claim for claim in made("v1-fig15").claims}
    assert by_what["that is of the link"].ours == pytest.approx(96.8)
    assert by_what["round trip with it"].ours is None


@pytest.mark.long
def test_figure_17_leaves_out_what_vllm_cannot_hold(made) -> None:
    frame = made("v1-fig17").frame
    assert set(frame["system"]) == {"vLLM", *(f"{count} memory devices" for count in (2, 4, 8, 12))}
    assert (frame["batch"] <= frame["limit"] + 1e-9).all()
    assert "its first 200 requests without " in made("v1-fig17").how
