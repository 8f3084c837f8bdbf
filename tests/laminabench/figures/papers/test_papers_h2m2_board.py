"""H2M2's figures about the board beside other systems: what they say, computed again from plans."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from laminabench.catalog.boards import board
from laminabench.catalog.find_model import model
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made, figure
from laminabench.figures.papers.h2m2 import fig14, fig17, fig19, sensitivity
from laminabench.figures.papers.h2m2.ground import CASES, CHINCHILLA, GPT3, LLAMA, original
from laminabench.sim.h2m2 import Plan, footprint, plan, uniform

ONE_MODEL = {"h2m2-fig12": GPT3, "h2m2-fig13": CHINCHILLA, "h2m2-fig15": LLAMA}


@cache
def made(name: str) -> Made:
    return figure(name).make(Ground(offline=True))


def claim(name: str, beginning: str) -> Claim:
    return next(each for each in made(name).claims if each.what.startswith(beginning))


def planned(policy: str, name: str, batch: int, length: int, on: str = "h2m2", **assumed: Any) -> Plan:
    where = replace(board(on), **assumed)
    return plan(where, model(name), policy, uniform(batch, length, where), translated=policy == "greedy")


@pytest.mark.parametrize("name", ONE_MODEL)
def test_an_average_is_of_ratios_at_the_lengths_of_the_case(name: str) -> None:
    case = ONE_MODEL[name]
    ratios = [
        planned("lpddr", case.model, case.batch, length).iteration_s
        / planned("greedy", case.model, case.batch, length).iteration_s
        for length in case.lengths
    ]
    assert claim(name, "H2M2 over LPDDR-only").ours == pytest.approx(sum(ratios) / len(ratios))


@pytest.mark.parametrize("name", ONE_MODEL)
def test_averages_are_called_fitted_and_greed_s_cost_is_not(name: str) -> None:
    fitted = {each.what.split(",")[0] for each in made(name).claims if each.fitted}
    assert {"H2M2 over LPDDR-only", "Hierarchical over LPDDR-only"} <= fitted
    assert not any(what.startswith("H2M2's average over Oracle's") for what in fitted)
    assert claim(name, "H2M2's average over Oracle's").holds


@pytest.mark.parametrize("name", ONE_MODEL)
def test_hierarchical_lies_between_no_overlap_and_all(name: str) -> None:
    frame = made(name).frame
    mine = frame[frame["way"] == "Hierarchical"]
    assert (mine["lowest"] <= mine["speed_up"]).all()
    assert (mine["speed_up"] <= mine["highest"]).all()
    # Nothing migrates while all is in HBM; of GPT3-175B that is never so.
    shortest = mine.iloc[0]
    assert (shortest["lowest"] == shortest["highest"]) == (name != "h2m2-fig12")
    assert mine.iloc[-1]["lowest"] < mine.iloc[-1]["highest"]
    assert frame[frame["way"] != "Hierarchical"][["lowest", "highest"]].isna().all(axis=None)


@pytest.mark.parametrize("name", ONE_MODEL)
def test_nothing_with_two_memories_is_faster_than_the_best_mapping(name: str) -> None:
    table = made(name).frame.pivot_table(index="length", columns="way", values="speed_up")
    assert (table["H2M2"] <= table["Oracle"]).all()


def test_hierarchical_leads_only_where_hbm_holds_all_of_chinchilla() -> None:
    leads = claim("h2m2-fig13", "lengths at which Hierarchical")
    assert leads.holds
    assert isinstance(leads.ours, float)
    fits = footprint(model(CHINCHILLA.model), CHINCHILLA.batch * int(leads.ours))
    assert 0 < sum(fits.values()) <= 96e9


def test_llama_s_speed_ups_need_kv_to_be_read_again() -> None:
    remark = claim("h2m2-fig15", "H2M2 over LPDDR-only").remark
    once = [
        planned("lpddr", LLAMA.model, 128, length, reread_kv=False).iteration_s
        / planned("greedy", LLAMA.model, 128, length, reread_kv=False).iteration_s
        for length in LLAMA.lengths
    ]
    assert f"it would be {sum(once) / 4:.2f} times" in remark
    assert sum(once) / 4 < 2


def test_figure_14_has_the_mapping_s_share_of_each_sublayer() -> None:
    frame = made("h2m2-fig14").frame
    assert set(frame.groupby("way").size()) == {16}
    row = frame[(frame["way"] == "H2M2") & (frame["length"] == 1024)].iloc[0]
    mapping = planned("greedy", GPT3.model, 32, 1024).mapping
    # A head's part of 96 layers: 3 x 128 columns of qkv, and K and V of 128 for every token.
    assert row["qkv_gb"] == pytest.approx(96 * 12288 * 384 * mapping.qkv / 1e9)
    assert row["attention_gb"] == pytest.approx(96 * 2 * 128 * 32 * 1024 * mapping.attention / 1e9)
    assert (frame["hbm_gb"] <= fig14.capacity_gb()).all()
    assert frame["hbm_gb"].min() > 0.95 * fig14.capacity_gb()


def test_figure_14_says_where_qkv_leaves_hbm() -> None:
    said = claim("h2m2-fig14", "qkv in HBM")
    held = made("h2m2-fig14").frame.query("way == 'H2M2'").set_index("length")["qkv_gb"]
    assert said.remark.startswith("From 1536 tokens on")
    assert held[1408] >= held.max() / 10 > held[1536]


def test_table_4_comes_in_the_papers_order() -> None:
    changed = fig17.changes(made("h2m2-fig17").frame)["H2M2"].abs()
    capacity, less_bandwidth = changed[["hbmcap-less", "hbmcap-more"]], changed["lpddrbw-less"]
    assert capacity.min() > less_bandwidth > changed["lpddrchip-more"] > 3
    assert changed[["hbmbw-less", "hbmbw-more", "hbmchip-more"]].max() < 1
    assert fig17.order(fig17.changes(made("h2m2-fig17").frame))[:3] == [
        *("HBM capacity", "LPDDR bandwidth", "LPDDR chips"),
    ]


def test_table_4_s_baseline_keeps_the_original_lpddr() -> None:
    frame = made("h2m2-fig17").frame
    assert len(frame) == 9 * 2 * 4
    row = frame.query("board == 'lpddrbw-less' and way == 'H2M2' and length == 512").iloc[0]
    alone = planned("lpddr", GPT3.model, 32, 512).iteration_s
    slower = planned("greedy", GPT3.model, 32, 512, on="lpddrbw-less").iteration_s
    assert row["speed_up"] == pytest.approx(alone / slower)
    # Each of table 4's boards is in one part.
    assert sorted(set(frame["board"])) == sorted(
        ["h2m2", *(name for names in fig17.PARTS.values() for name in names)]
    )


def test_no_board_with_more_of_anything_has_a_worse_best_mapping() -> None:
    best = fig17.changes(made("h2m2-fig17").frame)["Oracle"]
    for name, change in best.items():
        assert change <= 1e-9 if str(name).endswith("less") else change >= -1e-9, name


def test_figure_18_adds_communication_to_eight_devices() -> None:
    eight = made("h2m2-fig18").frame.query("way == '8-HBM'").set_index("length")
    silent = planned("8-hbm", GPT3.model, 32, 2048, hbm_barrier_s=0.0).iteration_s
    added = eight.loc[2048, "iteration_ms"] / 1000 - silent
    assert added == pytest.approx(96 * 4 * original().hbm_barrier_s)
    alone = planned("lpddr", GPT3.model, 32, 2048).iteration_s
    assert eight.loc[2048, "highest"] == pytest.approx(alone / silent)
    assert claim("h2m2-fig18", "8-HBM over").fitted


def test_energy_is_of_busy_memories() -> None:
    frame = made("h2m2-fig19").frame
    row = frame.query("counted == @fig19.BUSY and way == 'H2M2' and length == 1024").iloc[0]
    alone, mine = (planned(policy, GPT3.model, 32, 1024) for policy in ("lpddr", "greedy"))
    by_hand = mine.lpddr_busy_s + original().memory_power_ratio * mine.hbm_busy_s
    assert row["energy"] == pytest.approx(by_hand / alone.lpddr_busy_s)


def test_only_busy_memories_give_both_published_energies() -> None:
    found = made("h2m2-fig19").frame.groupby(["counted", "way"])["energy"].mean()
    for count in (fig19.ALWAYS, fig19.BYTES):
        assert found[count, "8-HBM"] == pytest.approx(1.31)
        assert found[count, "H2M2"] > 0.76 * 1.1
    assert claim("h2m2-fig19", "memory energy for a token, H2M2").holds
    assert not claim("h2m2-fig19", "memory energy for a token, H2M2").fitted


def test_a_byte_is_read_once_wherever_it_is() -> None:
    rows = made("h2m2-fig19").frame.query("counted == @fig19.BYTES")
    assert (rows["lpddr"] + rows["hbm"]).to_numpy() == pytest.approx(1)
    # So HBM's byte takes what eight devices' average says.
    assert rows["hbm_over_lpddr"].to_numpy() == pytest.approx(1.31)


def test_sensitivity_starts_from_what_the_figures_show() -> None:
    frame = made("h2m2-sensitivity").frame
    usual = frame[frame["assumed"] == sensitivity.DEFAULT.words].set_index(["model", "measure"])["times"]
    for name, case in ONE_MODEL.items():
        assert usual[case.model, "h2m2"] == pytest.approx(claim(name, "H2M2 over LPDDR-only").ours)
        assert usual[case.model, "of_oracle"] == pytest.approx(claim(name, "H2M2's average over Oracle").ours)
        assert usual[case.model, "hierarchical"] == pytest.approx(claim(name, "Hierarchical over").ours)


def test_a_varied_assumption_is_the_baseline_s_too() -> None:
    frame = made("h2m2-sensitivity").frame
    times = frame[frame["measure"] == "h2m2"].set_index(["model", "assumed"])["times"]
    ratios = [
        planned("lpddr", GPT3.model, 32, length, dram_efficiency=0.7).iteration_s
        / planned("greedy", GPT3.model, 32, length, dram_efficiency=0.7).iteration_s
        for length in GPT3.lengths
    ]
    assert times[GPT3.model, "DRAM efficiency 0.7"] == pytest.approx(sum(ratios) / 4)


def test_every_other_assumption_changes_something() -> None:
    table = made("h2m2-sensitivity").frame.pivot_table(
        index="assumed", columns=["model", "measure"], values="times"
    )
    usual = table.loc[sensitivity.DEFAULT.words]
    for other in sensitivity.OTHERS:
        assert (table.loc[other.words] / usual - 1).abs().max() > 1e-4, other.words
    # Query heads of GPT3 and Chinchilla share no KV.
    assert table.loc["KV read once for a group"].dropna().index.unique("model").to_list() == [LLAMA.model]
    assert len(CASES) == 3
