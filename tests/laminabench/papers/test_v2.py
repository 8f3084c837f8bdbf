"""The figures and tables of the current paper: what they say, by hand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.catalog.step import model_step_seconds
from laminabench.papers.context import COST_SETS, Context
from laminabench.papers.paper import make
from laminabench.papers.v2 import analysis, equal_cost
from laminabench.papers.v2.steps import most_requests, serial, step
from laminabench.render import style


@pytest.mark.parametrize("name", ["table1", "table3", "table5"])
def test_a_table_is_exact(name: str, made) -> None:
    cells = [each for each in made(name).claims if each.where.startswith("table")]
    for each in cells:
        assert each.ours == pytest.approx(each.published, rel=0.0015), each.what
    assert len(cells) == {"table1": 20, "table3": 12, "table5": 6}[name]


def test_table_1_says_what_a_dollar_buys(made, claim) -> None:
    frame = made("table1").frame.set_index("")
    assert frame.loc["BF16 rate for its price", "tpu-v6e"] == pytest.approx(918 / 2.70)
    assert frame.loc["bandwidth for its price", "h20"] == pytest.approx(4000 / 4.63)
    assert claim("table1", "TPU v6e or H20").ours == "tpu-v6e has both"


def test_table_3_counts_layers_and_one_table_of_32000(made) -> None:
    frame = made("table3").frame.set_index("model")
    layer = 4 * 6656**2 + 3 * 6656 * 17920 + 2 * 6656
    by_hand = 2 * (60 * layer + 6656 + 32000 * 6656) / 1e9
    assert frame.loc["llama-33b", "ours, counted\nas there, GB"] == pytest.approx(by_hand)
    # Two real tables of 128,256 rows, instead of one of 32,000.
    more = frame.loc["llama3-70b", "with all\ntables, GB"] - frame.loc["llama3-70b"].iloc[1]
    assert more == pytest.approx(2 * 8192 * (2 * 128256 - 32000) / 1e9)


def test_table_4_is_exact_on_real_traces(real_traces: Path) -> None:
    del real_traces  # which the ground finds by itself
    claims = make("table4", Context(offline=True)).claims
    real = [each for each in claims if each.how == "computed: from the real trace"]
    assert len(real) >= 3
    assert all(each.ours == pytest.approx(each.published, rel=1e-3) for each in real)


def test_the_roofline_of_figure_2_is_flat_and_then_rises(made) -> None:
    shape, card = model("llama3-70b"), device("h100")
    small, large = analysis.roofline(shape, card, 2, np.array([1, 1024]))
    weights = 2 * (80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672) + 128256 * 8192)
    assert small == pytest.approx((weights + 2 * 2 * 8192) / (2 * 3.35e12))
    assert large == pytest.approx(weights * 1024 / (2 * 989e12))
    ideal = made("fig2").frame.query("costs == 'roofline' and batch == 1024")
    assert ideal["mfu_percent"].to_numpy() == pytest.approx(100)


def test_figure_3_reads_every_kv_byte_once(made) -> None:
    frame = made("fig3").frame
    one = frame.query("costs == 'vllm-0.14' and device == 'h100' and context == 8192 and batch == 20").iloc[0]
    kv_bytes = 20 * 8192 * 2 * 80 * 8 * 128 * 2
    assert one["mbu_percent"] == pytest.approx(100 * kv_bytes / (one["ms"] / 1000 * 3.35e12))
    assert frame["mbu_percent"].max() < 100
    assert analysis.fitting("h100", 8192) == pytest.approx(80e9 / (8192 * 327680))
    assert frame.query("device == 'h100' and context == 8192")["batch"].max() == 29


def test_figure_4_is_section_3_1s_formula() -> None:
    shape, costs = model("llama3-70b"), load_costs("roofline")
    result = analysis.least_bandwidth(costs, shape, (2, 2), 4096, np.array([300]))
    model_s = model_step_seconds(costs, shape, device("h100"), 2, 300)
    attention_s = 300 * 4096 * 327680 / 2 / 4e12
    by_hand = 2.25 * 2 * 8192 * 300 * 80 / (0.2 * (model_s + attention_s))
    assert result[0] == pytest.approx(float(by_hand))


def test_figure_4_holds_for_each_nic_and_not_for_all_together(made) -> None:
    verdicts = {each.what.split(", ")[-1]: each.holds for each in made("fig4").claims[:4]}
    assert verdicts == {"all NICs together": False, "each NIC": True}
    frame = made("fig4").frame.query("dop == '(4, 4)'")
    assert (frame["aggregate_gb_per_s"] / frame["nic_gb_per_s"]).to_numpy() == pytest.approx(4)


@pytest.mark.long
def test_figure_10_has_a_band_for_each_era_and_for_the_sets_with_one_host(made, claim) -> None:
    frame = made("fig10").frame
    # vllm-2024 at both ends, the same with Lamina's host as slow, vllm-2026, and the sets.
    assert len(frame) == (4 + 1 + len(COST_SETS)) * 12 * 2
    for era, equal, words in (
        ("vllm-2024", False, "vllm-2024"),
        ("vllm-2024", True, "vllm-2024 and Lamina's host as slow"),
        ("vllm-2026", False, "vllm-2026"),
        ("", False, "one host for both"),
    ):
        own = frame[(frame["era"] == era) & (frame["hosts_alike"] == equal)]
        result = claim(
            "fig10", f"gain in throughput at similar cost, lowest and highest of 12 cells, {words}"
        )
        assert result.ours == pytest.approx((own["gain_percent"].min(), own["gain_percent"].max()))
        assert result.experiment
    vllm = frame[(frame["system"] == "vllm") & (frame["era"] == "vllm-2024")]
    assert set(vllm["host_ms_per_step"]) == {5, 13}
    assert set(vllm["max_num_seqs"]) == {256}
    assert "2 ms a step and 20 us a request" in made("fig10").how


def test_what_vllm_s_host_must_have_taken_is_on_the_lines_between_its_ends() -> None:
    lines = equal_cost.Lines(np.array([5.0, 2.0]), np.array([10.0, 4.0]))
    assert lines.at(10) == [24, 60]
    assert lines.host_of(0, 24) == pytest.approx(10)
    assert lines.host_of(-1, 60) == pytest.approx(10)


def test_a_step_takes_no_longer_than_its_parts_and_no_less_than_the_longest(made) -> None:
    frame = made("fig12").frame
    parts = frame[["model_ms", "attention_ms", "network_ms", "host_ms"]]
    assert (frame["tbt_ms"] <= parts.sum(axis=1) + 1e-6).all()
    assert (frame["tbt_ms"] > parts.max(axis=1)).all()
    # 80 layers and half of 33 us each way.
    large = frame.query("model == 'llama3-70b' and batch == 1")
    assert (large["network_ms"] >= 80 * 0.033).all()


def test_a_full_batch_is_what_memory_holds() -> None:
    setup = serial("llama3-70b", load_costs("vllm-0.14"))
    assert most_requests(setup, 8192) == int(4 * (0.9 * 96e9 - 1e9) / 327680 / 8192) == 127
    assert step(setup, 8192, 127).batch == 127
    with pytest.raises(AssertionError, match="does not fit"):
        step(setup, 8192, 128)


def test_figure_13_shows_the_published_values_alone_where_nothing_was_measured(tmp_path: Path) -> None:
    alone = make("fig13", Context(tmp_path, num_requests=200, offline=True))
    assert set(alone.frame["kind"]) == {"published"}
    assert "no ping-pong was measured" in alone.how
    with style.look():
        picture = alone.picture()
    words = [each.get_text() for axes in picture.axes for each in axes.texts]
    assert words == [
        "published: FHBN, 33.0 us",
        "published: NCCL, 66.6 us",
        "published: FHBN, 45.7 GB/s",
        "published: NCCL, 35.5 GB/s",
    ]


def test_rotation_hides_what_a_host_in_the_way_of_transfers_costs(claim) -> None:
    for words in (
        "tokens a second that Lamina loses over GPUDirect",
        "tokens a second that Lamina loses over NCCL",
    ):
        *one, low, high = map(float, re.findall(r"[\d.]+", claim("fig13", words).ours))
        assert min(one) > high >= low >= 0


def test_figure_14_never_loses_by_overlapping(made) -> None:
    frame = made("fig14").frame
    assert (frame["speed_up_percent"] > 0).all()
    assert frame["speed_up_percent"].to_numpy() == pytest.approx(
        (100 * (frame["disabled_ms"] / frame["enabled_ms"] - 1)).to_numpy()
    )
    best = frame.groupby("model")["speed_up_percent"].max()
    assert best["llama-65b"] > 3 * best["llama3-70b"]
