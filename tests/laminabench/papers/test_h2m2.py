"""H2M2's figures: what they say, computed again by hand and from plans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laminabench.catalog.find_model import model
from laminabench.papers.context import Context
from laminabench.papers.h2m2 import (
    boards,
    dynamic,
    eight_hbm,
    granularity,
    one_model,
    overheads,
    speeds,
)
from laminabench.papers.h2m2.dynamic import MODEL, moments, outcome_of
from laminabench.papers.h2m2.speeds import (
    CHINCHILLA,
    GPT3,
    LLAMA,
    original,
)
from laminabench.systems.modelled.h2m2.boards import board
from laminabench.systems.modelled.h2m2.mapping import Mapping, Plan, plan, time_of, uniform

ONE_MODEL = {"h2m2-fig12": GPT3, "h2m2-fig13": CHINCHILLA, "h2m2-fig15": LLAMA}


def planned(policy: str, name: str, batch: int, length: int, on: str = "h2m2", **assumed: Any) -> Plan:
    where = replace(board(on), **assumed)
    return plan(where, model(name), policy, uniform(batch, length, where), translated=policy == "greedy")


def average(case: speeds.Case, **assumed: Any) -> float:
    """Of H2M2's speed-ups at the lengths of the case."""
    times = [
        [planned(policy, case.model, case.batch, length, **assumed).iteration_s for length in case.lengths]
        for policy in ("lpddr", "greedy")
    ]
    return sum(alone / own for alone, own in zip(*times, strict=True)) / len(case.lengths)


@pytest.mark.parametrize("name", ["h2m2-fig6", "h2m2-fig7", "h2m2-fig8"])
def test_nothing_beats_the_best_mapping(name: str, made) -> None:
    table = made(name).frame.pivot_table(index=["batch", "length"], columns="way", values="speed_up")
    assert len(table) == 9
    assert (table.le(table["Best"] + 1e-9, axis=0)).all(axis=None)


def test_figure_7s_fixed_share_is_called_fitted_and_counts_for_nothing(made, claim) -> None:
    fitted = claim("h2m2-fig7", f"the same: {granularity.SHARE} of weights")
    assert fitted.fitted
    assert fitted.deviation == pytest.approx(0, abs=0.02)
    assert not claim("h2m2-fig7", "speed-up of FlexGen, average: solved").fitted
    frame = made("h2m2-fig7").frame
    own = frame[frame["way"] == granularity.STATIC.words].set_index(["batch", "length"])
    share = round(granularity.SHARE * 96)
    assert (own["qkv_on_hbm"] == share).all()
    # KV is what gives way where the share is too much.
    assert own.loc[(16, 512), "attention_on_hbm"] == share
    assert own.loc[(64, 2048), "attention_on_hbm"] < share


@pytest.mark.parametrize("case", speeds.CASES, ids=lambda case: case.model)
def test_the_greedy_mapping_is_near_its_published_overhead(case: speeds.Case) -> None:
    ours, published = overheads.overheads(case), overheads.PUBLISHED[case.words]
    times = ours.mapping / published.mapping
    # Llama2-70B's is not: greedy finds the best mapping at three of four lengths. It is with weights loaded
    # behind the tile before.
    assert (1 / overheads.NEAR <= times <= overheads.NEAR) == (case is not LLAMA)
    if case is LLAMA:
        assert 0 < ours.mapping < 0.05
        otherwise = overheads.overheads(case, speeds.loaded_otherwise(original())).mapping
        assert 1 / overheads.NEAR <= otherwise / published.mapping <= overheads.NEAR
    assert ours.abstraction > 0
    assert ours.total == pytest.approx(ours.mapping + ours.abstraction, rel=0.1, abs=0.05)


def test_table_3_has_the_papers_bytes(claim) -> None:
    assert claim("h2m2-table3", "page table").ours == 4
    # 96 layers, each with the rest of 2 MiB that a tensor of 32 x 12288 bytes leaves.
    assert claim("h2m2-table3", "internal fragmentation").ours == 96 * (2**21 - 32 * 12288) / 2**20 == 156
    assert claim("h2m2-table3", "the same if").ours == 32 * 96 * 2


def test_a_decision_s_time_is_read_from_the_stored_value(tmp_path: Path) -> None:
    seconds = {"median": 1e-6, "min": 5e-7, "max": 2e-6}
    rows = [{"what": "a decision of greedy, over lengths", "seconds": seconds}]
    (tmp_path / "h2m2-2-cores").mkdir()
    (tmp_path / "h2m2-2-cores/bench.json").write_text(json.dumps({"rows": rows}))
    assert overheads.decision(Context(tmp_path))["decision_ms"] == (0.0005, 0.002)
    assert overheads.decision(Context(tmp_path / "nothing"))["decision_ms"] is None


@pytest.mark.long
def test_figure_16_replays_the_same_requests_for_every_policy(made) -> None:
    frame = made("h2m2-fig16").frame
    assert len(frame) == len(dynamic.SEEDS) * 8 * 128
    kv = frame.pivot_table(index=["seed", "iteration"], columns="way", values="kv_gb")
    assert (kv.nunique(axis=1) == 1).all()
    assert (frame[frame["way"] == "LPDDR-only"]["speed_up"] == 1).all()
    # 32 requests of 1024 tokens on average, 96 layers of K and V of 12288 bytes.
    assert kv["H2M2"].mean() == pytest.approx(32 * 1024 * 96 * 2 * 12288 / 1e9, rel=0.15)
    means = frame.groupby("way")["speed_up"].mean()
    assert all(means[words] > means[way.words] for way, words in dynamic.EXACTLY.items())
    # Data moves only where the mapping changes, and no faster than LPDDR can take it.
    assert frame[frame["way"] == "LPDDR-only"]["moved_gb"].sum() == 0
    moved = frame[(frame["way"] == "H2M2") & (frame["moved_gb"] > 0)]
    assert 0 < len(moved) < len(dynamic.SEEDS) * 128
    assert (moved["moved_gb"] / (moved["moving_ms"] / 1000) <= 544).all()


def test_figure_16_s_iterations_take_what_their_mapping_takes() -> None:
    outcome = outcome_of(speeds.H2M2, 1)
    done, memory = outcome.iterations, outcome.memory
    assert memory is not None
    for at, moment in enumerate(moments(outcome, 1)):
        heads = (int(memory[name][at]) for name in ("qkv_heads", "attention_groups", "fc_heads"))
        by_hand = time_of(speeds.original(), model(MODEL), Mapping(*heads), moment, translated=True)
        # Ticks of 0.1 ns, rounded a slice at a time.
        assert done["duration_s"][at] - memory["moving_s"][at] == pytest.approx(by_hand.iteration_s, rel=1e-6)
        assert moment.kv_tokens == done["kv_tokens"][at] + 32


@pytest.mark.parametrize("name", ONE_MODEL)
def test_averages_are_of_ratios_and_called_fitted_but_for_greed_s_cost(name: str, made, claim) -> None:
    assert claim(name, "H2M2 over LPDDR-only").ours == pytest.approx(average(ONE_MODEL[name]))
    fitted = {each.what.split(",")[0] for each in made(name).claims if each.fitted}
    assert {"H2M2 over LPDDR-only", "Hierarchical over LPDDR-only"} <= fitted
    assert not any(what.startswith("H2M2's average over Oracle's") for what in fitted)
    assert claim(name, "H2M2's average over Oracle's").holds


@pytest.mark.parametrize("name", ONE_MODEL)
def test_hierarchical_lies_between_no_overlap_and_all_and_the_best_mapping_leads(name: str, made) -> None:
    frame = made(name).frame
    table = frame.pivot_table(index="length", columns="way", values="speed_up")
    assert (table["H2M2"] <= table["Oracle"]).all()
    own = frame[frame["way"] == "Hierarchical"]
    assert (own["lowest"] <= own["speed_up"]).all()
    assert (own["speed_up"] <= own["highest"]).all()
    # Nothing migrates while all is in HBM; of GPT3-175B that is never so.
    shortest = own.iloc[0]
    assert (shortest["lowest"] == shortest["highest"]) == (name != "h2m2-fig12")
    assert own.iloc[-1]["lowest"] < own.iloc[-1]["highest"]
    assert frame[frame["way"] != "Hierarchical"][["lowest", "highest"]].isna().all(axis=None)


def test_figure_14_has_the_mapping_s_share_of_each_sublayer_and_says_where_qkv_leaves(made, claim) -> None:
    frame = made("h2m2-fig14").frame
    assert set(frame.groupby("way").size()) == {16}
    row = frame[(frame["way"] == "H2M2") & (frame["length"] == 1024)].iloc[0]
    mapping = planned("greedy", GPT3.model, 32, 1024).mapping
    # A head's part of 96 layers: 3 x 128 columns of qkv, and K and V of 128 for every token.
    assert row["qkv_gb"] == pytest.approx(96 * 12288 * 384 * mapping.qkv / 1e9)
    assert row["attention_gb"] == pytest.approx(96 * 2 * 128 * 32 * 1024 * mapping.attention / 1e9)
    assert (frame["hbm_gb"] <= one_model.capacity_gb()).all()
    assert frame["hbm_gb"].min() > 0.95 * one_model.capacity_gb()
    stored = frame[frame["way"] == "H2M2"].set_index("length")["qkv_gb"]
    assert stored[1408] >= stored.max() / 10 > stored[1536]
    assert claim("h2m2-fig14", "qkv in HBM").remark.startswith("From 1536 tokens on")


def test_table_4_comes_in_the_papers_order(made) -> None:
    changes = boards.changes(made("h2m2-fig17").frame)
    changed = changes["H2M2"].abs()
    capacity, less_bandwidth = changed[["hbmcap-less", "hbmcap-more"]], changed["lpddrbw-less"]
    assert capacity.min() > less_bandwidth > changed["lpddrchip-more"] > 3
    assert changed[["hbmbw-less", "hbmbw-more", "hbmchip-more"]].max() < 1
    assert boards.order(changes)[:3] == ["HBM capacity", "LPDDR bandwidth", "LPDDR chips"]
    # No board with more of anything has a worse best mapping.
    for name, change in changes["Oracle"].items():
        assert change <= 1e-9 if str(name).endswith("less") else change >= -1e-9, name


def test_figure_18_adds_communication_to_eight_devices(made, claim) -> None:
    eight = made("h2m2-fig18").frame.query("way == '8-HBM'").set_index("length")
    silent = planned("8-hbm", GPT3.model, 32, 2048, hbm_barrier_s=0.0).iteration_s
    added = eight.loc[2048, "iteration_ms"] / 1000 - silent
    assert added == pytest.approx(96 * 4 * original().hbm_barrier_s)
    alone = planned("lpddr", GPT3.model, 32, 2048).iteration_s
    assert eight.loc[2048, "highest"] == pytest.approx(alone / silent)
    assert claim("h2m2-fig18", "8-HBM over").fitted


def test_only_busy_memories_give_both_published_energies(made, claim) -> None:
    frame = made("h2m2-fig19").frame
    result = frame.groupby(["counted", "way"])["energy"].mean()
    for count in (eight_hbm.ALWAYS, eight_hbm.BYTES):
        assert result[count, "8-HBM"] == pytest.approx(1.31)
        assert result[count, "H2M2"] > 0.76 * 1.1
    message = claim("h2m2-fig19", "memory energy for a token, H2M2")
    # The rule of counting was chosen of three for this number.
    assert (message.holds, message.fitted) == (True, True)
    # A byte is read once, wherever it is; so HBM's takes what eight devices' average says.
    rows = frame.query("counted == @eight_hbm.BYTES")
    assert (rows["lpddr"] + rows["hbm"]).to_numpy() == pytest.approx(1)
    assert rows["hbm_over_lpddr"].to_numpy() == pytest.approx(1.31)


@pytest.mark.long
def test_sensitivity_starts_from_what_the_figures_show_and_varies_the_baseline_too(made, claim) -> None:
    frame = made("h2m2-sensitivity").frame
    table = frame.pivot_table(index="assumed", columns=["model", "measure"], values="times")
    usual = table.loc[boards.DEFAULT.words]
    for name, case in ONE_MODEL.items():
        assert usual[case.model, "h2m2"] == pytest.approx(claim(name, "H2M2 over LPDDR-only").ours)
        assert usual[case.model, "of_oracle"] == pytest.approx(claim(name, "H2M2's average over Oracle").ours)
        assert usual[case.model, "hierarchical"] == pytest.approx(claim(name, "Hierarchical over").ours)
    slower = table.loc["DRAM efficiency 0.7"]
    assert slower[GPT3.model, "h2m2"] == pytest.approx(average(GPT3, dram_efficiency=0.7))
    for other in boards.OTHERS:
        assert (table.loc[other.words] / usual - 1).abs().max() > 1e-4, other.words
    # Query heads of GPT3 and Chinchilla share no KV.
    assert table.loc["KV read once for a group"].dropna().index.unique("model").to_list() == [LLAMA.model]
