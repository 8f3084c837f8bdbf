from __future__ import annotations

import numpy as np
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.catalog.step import model_step
from laminabench.papers.v1 import served, tables
from laminabench.papers.v1.estimate import homogeneous, offloaded
from laminabench.papers.v1.parts import (
    BATCHES,
    TABLE3,
    implied_mfu,
    least_bandwidth,
    mfu,
    parameters,
    through_host,
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
    requests,
    setup,
    sweep,
    usd,
)
from laminabench.papers.v1.tried import SHORTEST, gain, with_reading


@pytest.mark.parametrize(("column", "half"), [("$/GB", 0.5), ("$/(GB/s)", 0.005)])
def test_table_1_rounds_to_the_printed_numbers(column, half, made) -> None:
    frame = made("v1-table1").frame
    assert (abs(frame[column] - frame[f"published {column}"]) <= half + 1e-9).all()


def test_table_1_s_own_values_are_called_entered_and_are_the_printed_ones(made) -> None:
    entered = [claim for claim in made("v1-table1").claims if claim.entered]
    assert len(entered) == 5 * 3
    assert all(claim.ours == claim.published for claim in entered)
    assert "price of rtx-3090" in [claim.what for claim in entered]


def test_alpha_is_what_both_memory_and_bandwidth_are_cheaper_by(made) -> None:
    claim = next(claim for claim in made("v1-table1").claims if claim.what.startswith("alpha"))
    # An A100's dollars a GB over an RTX 3090's; an H100's dollars a GB/s over an Arc A770's.
    assert claim.ours == pytest.approx((17500 / 80 / (1600 / 24), 36500 / 3350 / (350 / 560)))
    assert list(tables.TABLE_1) == made("v1-table1").frame["accelerator"].to_list()


def test_table_4_is_exact(made) -> None:
    frame = made("v1-table4").frame
    assert (abs(frame["ours\nGB"] - frame["published\nGB"]) < 0.05).all()
    assert frame["layers"].to_list() == [40, 60]
    assert frame["hidden\nsize"].to_list() == [5120, 6656]


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


def test_table_3_has_every_published_cell_beside_a_band(made) -> None:
    frame = made("v1-table3").frame
    assert frame["published\nGB/s"].to_list() == [rate for row in TABLE3.values() for rate in row]
    assert (frame["ours, low\nGB/s"] <= frame["ours, high\nGB/s"]).all()
    assert sorted(set(frame["batch"])) == list(BATCHES)


def test_mfu_of_the_ideal_is_bound_by_weights_and_then_by_the_peak() -> None:
    shape, card, ideal = model("llama-13b"), device("a100-80g-sxm"), load_costs("roofline")
    small, large = mfu(ideal, shape, card, 1, np.array([1, 4096]))
    # One row: 2 N operations while 2 N bytes are read.
    assert small == pytest.approx(2039e9 / 312e12, rel=0.05)
    assert 0.9 < large <= 1


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


def test_no_homogeneous_cluster_is_faster_than_reading_its_kv() -> None:
    shape, card, ideal = model("llama-13b"), device("a100-80g"), load_costs("roofline")
    rate = homogeneous(ideal, shape, card, 16384)
    # Nothing is faster than a read of the KV alone: one request's, at the full bandwidth.
    assert 0 < rate < card.bandwidth_bytes_per_s / (16384 * shape.kv_bytes_per_token)


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


def test_requests_of_one_length_end_with_their_context() -> None:
    trace = requests(5, 512)
    assert set(trace.prompt_tokens + trace.output_tokens) == {512}
    assert len(trace) == 5


def test_twelve_memory_devices_would_reach_the_paper_s_largest_batch(claim) -> None:
    costs = load_costs("roofline")
    per_token = 2 * 2 * 60 * 6656
    pool = int((0.9 * 40 * 2**30 - 1e9) // per_token) // 2048
    assert most_requests(LAMINA, setup(LAMINA, "llama-33b", costs, 12), 2048) == 12 * pool == 132
    assert "12 are nearest to the upper end with 66" in claim("v1-fig12", "largest batch").experiment


@pytest.mark.parametrize("way", WAYS)
def test_a_point_is_one_batch_from_beginning_to_end(way) -> None:
    found = point(way, setup(way, "llama-13b", load_costs("vllm-0.14")), 512, 16)
    # A batch of 16, or two of 8 that take turns.
    assert found.tokens_per_s == pytest.approx(
        16 / (found.tbt_ms / 1000), rel=0.15 if way == ROTATIONAL else 1e-6
    )
    assert (found.network_ms == pytest.approx(0, abs=1e-6)) == (way == VLLM)
    if way == LAMINA:
        # At the least a round trip for each of 40 layers.
        assert found.network_ms >= 40 * 33e-3


def test_a_sweep_ends_with_what_fits() -> None:
    found = sweep(VLLM, "llama-13b", load_costs("roofline"), 512, (1, 8, 64))
    assert [each.batch for each in found] == [1, 8, 25]


def test_ratios_are_of_largest_batches_and_of_equal_ones(made) -> None:
    frame = made("v1-fig12").frame
    largest = served.ratios(frame, "batch")
    assert largest["vllm-0.14", "llama-13b", 512] == pytest.approx(267 / 25)
    rotation = served.ratios(frame, "rotation")
    assert set(rotation.index.get_level_values("batch")) >= {129, 256}
    rows = frame[(frame["model"] == "llama-13b") & (frame["context"] == 512) & (frame["batch"] == 256)]
    one = rows[rows["costs"] == "vllm-0.14"].set_index("system")["tokens_per_s"]
    assert rotation["vllm-0.14", "llama-13b", 512, 256] == pytest.approx(one[ROTATIONAL] / one[LAMINA])


def test_figure_12_s_small_batches_are_those_of_the_frame(made) -> None:
    frame = made("v1-fig12").frame
    slower = next(claim for claim in made("v1-fig12").claims if claim.what.startswith("latency"))
    assert slower.published == 2
    rows = frame[(frame["batch"] == 4) & (frame["context"] == 512) & (frame["model"] == "llama-13b")]
    one = rows[rows["costs"] == "vllm-0.14"].set_index("system")["tbt_ms"]
    assert slower.ours[0] <= one[ROTATIONAL] / one[LAMINA] <= slower.ours[1]
    # Reading the weights is all that is done twice.
    assert 1 < slower.ours[0] <= slower.ours[1] < 2


def test_figure_5_knows_the_share_of_an_a100_and_no_gain_of_one_device(made) -> None:
    claim = made("v1-fig5").claims[0]
    assert claim.ours == pytest.approx(31.25)
    frame = made("v1-fig5").frame
    assert (frame[frame["devices"] == 1]["speed_up"] == 1).all()
    assert frame["speed_up"].max() < 4


def test_cards_that_cannot_reach_each_other_reduce_through_host_memory() -> None:
    costs, card = through_host(load_costs("vidur-2024")), device("rtx-4080")
    # A ring of four has three times the steps of one of two; 8.4 GB/s of PCIe's 32.
    assert costs.allreduce_seconds(card, 2, 0) == pytest.approx(8.4e-6)
    assert costs.allreduce_seconds(card, 4, 1e6) == pytest.approx(25.2e-6 + 1.5e6 / 8.4e9)
    assert costs.allreduce_seconds(card, 1, 1e6) == 0


def test_figure_5_s_speed_up_comes_out_within_its_batches(made) -> None:
    frame = made("v1-fig5").frame
    four = frame[frame["devices"] == 4].groupby("batch")["speed_up"]
    assert four.max()[512] < 1.41 < four.min()[128]


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
def test_what_table_3_implies_is_beside_the_measured_sets_and_in_no_band(name, made, ground) -> None:
    frame, claims = made(name).frame, made(name).claims
    assert set(measured(frame)["costs"]) == set(ground.cost_sets)
    assert set(derived(frame)["costs"]) == {DERIVED} == set(frame["costs"]) - set(ground.cost_sets)
    again = [claim for claim in claims if "speed that Table 3 implies" in claim.what]
    assert again
    for each in again:
        assert "paper's own numbers" in each.rests_on
        assert DERIVED in each.how
    for each in set(claims) - set(again):
        assert DERIVED not in each.how


def test_slow_small_batches_move_the_lower_end_away_and_short_requests_towards_it(claim) -> None:
    ours = claim("v1-fig12", "throughput with the largest").ours
    sets = [load_costs(name) for name in ("vllm-0.14", "vidur-2024")]
    short = [gain("llama-13b", costs, SHORTEST) for costs in sets]
    slow = load_costs(DERIVED)
    assert max(short) < ours[0] < gain("llama-13b", slow, 512)
    assert gain("llama-13b", with_reading(slow), 512) < gain("llama-13b", slow, 512)


def test_figure_6_s_utilisations_are_one_read_and_two_operations_an_element(made) -> None:
    frame = made("v1-fig6").frame
    mine = frame[frame["device"] == "h100"]
    # An operation for each byte of bf16 KV.
    assert (mine["mfu_percent"] / mine["mbu_percent"]).to_numpy() == pytest.approx(3350e9 / 989e12)
    assert mine["mbu_percent"].max() < 100


def test_figure_13_has_the_best_of_each_system_for_its_price(made) -> None:
    frame = made("v1-fig13").frame
    assert len(frame) == 3 * 2 * 4 * 2
    per_usd = frame["tokens_per_s_per_1000_usd"]
    assert per_usd.to_numpy() == pytest.approx((1000 * frame["tokens_per_s"] / frame["usd"]).to_numpy())


def test_figure_15_adds_the_round_trip_to_the_bytes(made) -> None:
    frame = made("v1-fig15").frame
    first = frame[frame["batch"] == 1].set_index("what")["us"]
    sent = 4 * 2 * 5120
    assert first["vanilla RDMA"] == pytest.approx(100 + sent / 17.2e3)
    assert first["polling and GPUDirect"] == pytest.approx(33 + sent / 24.2e3)
    by_what = {claim.what: claim for claim in made("v1-fig15").claims}
    assert by_what["that is of the link"].ours == pytest.approx(96.8)
    assert by_what["round trip with it"].ours is None


def test_figure_16_hides_no_more_than_there_is(made) -> None:
    frame = made("v1-fig16").frame
    assert (frame["masked_percent"] < 100).all()
    assert (frame["saved_percent"] < frame["masked_percent"].clip(lower=0) + 1e-9).all()


def test_figure_17_leaves_out_what_vllm_cannot_hold(made) -> None:
    frame = made("v1-fig17").frame
    assert set(frame["system"]) == {"vLLM", *(f"{count} memory devices" for count in (2, 4, 8, 12))}
    assert (frame["batch"] <= frame["limit"] + 1e-9).all()
    assert "its first 200 requests without " in made("v1-fig17").how
