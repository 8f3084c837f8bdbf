"""H2M2's figures about mappings: what they say by hand, and that all of its figures are written."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from laminabench.catalog.find_model import model
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import H2M2, Made, Written, figure
from laminabench.figures.papers.h2m2 import fig7, fig8, fig16, ground, table3
from laminabench.figures.papers.h2m2.dynamic import MODEL, moments, outcome_of, spec_of, timing_of
from laminabench.figures.papers.h2m2.ground import mean_speed_up_assuming
from laminabench.figures.papers.h2m2.table3 import OPPOSITE, PAPERS, greedy
from laminabench.sim.h2m2 import Mapping, time_of, uniform

GROUND = Ground(offline=True)


@cache
def made(name: str) -> Made:
    return figure(name).make(GROUND)


def claim(name: str, beginning: str) -> Claim:
    return next(each for each in made(name).claims if each.what.startswith(beginning))


@pytest.mark.long(but=["h2m2-fig12", "h2m2-fig16", "h2m2-table3"])
@pytest.mark.parametrize("name", H2M2)
def test_a_figure_is_written_whole_and_explains_what_does_not_come_out(
    name: str, written_whole: Callable[[Ground, str], Written]
) -> None:
    written = written_whole(GROUND, name)
    # What the paper leaves open is said under every picture, by kind.
    assert "fitted: " in written.how
    assert "assumed" in written.how


def test_the_baseline_is_lpddr_alone_on_the_unchanged_board() -> None:
    point = (32, 1024)
    assert ground.speed_up(ground.LPDDR_ONLY, "gpt3-175b", point) == 1
    larger = ground.speed_up(ground.ORACLE, "gpt3-175b", point, on=ground.board("hbmcap-more"))
    assert larger > ground.speed_up(ground.ORACLE, "gpt3-175b", point)


def test_an_average_is_of_the_speed_ups_at_the_points() -> None:
    case = ground.GPT3
    frame = ground.speed_ups((ground.H2M2,), case.model, ground.points_of(case))
    by_hand = sum(frame["speed_up"]) / 4
    on = ground.original()
    assert mean_speed_up_assuming(ground.H2M2, case, on) == pytest.approx(by_hand)
    assert ground.means(frame)["H2M2"] == pytest.approx(by_hand)


@pytest.mark.parametrize("name", ["h2m2-fig6", "h2m2-fig7", "h2m2-fig8"])
def test_nothing_beats_the_best_mapping(name: str) -> None:
    table = made(name).frame.pivot_table(index=["batch", "length"], columns="way", values="speed_up")
    assert len(table) == 9
    assert (table.le(table["Best"] + 1e-9, axis=0)).all(axis=None)


def test_figure_7s_fixed_share_is_called_fitted_and_counts_for_nothing() -> None:
    fitted = claim("h2m2-fig7", f"the same: {fig7.SHARE} of weights")
    assert fitted.fitted
    assert fitted.deviation == pytest.approx(0, abs=0.02)
    assert not claim("h2m2-fig7", "speed-up of FlexGen, average: solved").fitted
    frame = made("h2m2-fig7").frame
    mine = frame[frame["way"] == fig7.STATIC.words].set_index(["batch", "length"])
    share = round(fig7.SHARE * 96)
    assert (mine["qkv_on_hbm"] == share).all()
    # KV is what gives way where the share is too much.
    assert mine.loc[(16, 512), "attention_on_hbm"] == share
    assert mine.loc[(64, 2048), "attention_on_hbm"] < share


def test_figure_8_counts_the_papers_mappings() -> None:
    counted = claim("h2m2-fig8", "mappings")
    assert counted.ours == counted.published == 884_736
    assert "912,673" in counted.remark


def test_figure_8s_majors_come_in_the_papers_order() -> None:
    averages = ground.means(made("h2m2-fig8").frame)
    assert sorted(averages, key=averages.__getitem__, reverse=True) == list(fig8.PUBLISHED)


@pytest.mark.parametrize("case", ground.CASES, ids=lambda case: case.model)
def test_the_greedy_mapping_is_near_its_published_overhead(case: ground.Case) -> None:
    ours = table3.overheads(case)
    published = table3.Overheads(*table3.PUBLISHED[case.words])
    assert 0 <= ours.mapping <= table3.NEAR * published.mapping
    assert ours.abstraction > 0
    assert ours.total == pytest.approx(ours.mapping + ours.abstraction, rel=0.1, abs=0.05)


def test_table_3_has_the_papers_bytes() -> None:
    assert claim("h2m2-table3", "page table").ours == 4
    # 96 layers, each with the rest of 2 MiB that a tensor of 32 x 12288 bytes leaves.
    assert claim("h2m2-table3", "internal fragmentation").ours == 96 * (2**21 - 32 * 12288) / 2**20 == 156
    assert claim("h2m2-table3", "the same if").ours == 32 * 96 * 2


def test_a_decision_s_time_is_read_from_what_was_kept(tmp_path: Path) -> None:
    rows = [
        {"what": "a decision of greedy, over lengths", "seconds": {"median": 1e-6, "min": 5e-7, "max": 2e-6}}
    ]
    (tmp_path / "h2m2-2-cores").mkdir()
    (tmp_path / "h2m2-2-cores/bench.json").write_text(json.dumps({"rows": rows}))
    for results, ours, how in (
        (tmp_path, (0.5, 2.0), "measured: "),
        (tmp_path / "nothing", None, "not measured"),
    ):
        claims = table3.make(Ground(results, offline=True)).claims
        found = next(each for each in claims if each.what.startswith("time of a mapping"))
        assert found.ours == ours
        assert found.how.startswith(how)


def test_a_greedy_mapping_fits_and_the_first_sublayer_gets_what_it_wants() -> None:
    board, shape = ground.original(), model("gpt3-175b")
    moment = uniform(32, 2048, board)
    first, last = (greedy(board, shape, moment, order) for order in (PAPERS, OPPOSITE))
    for found in (first, last):
        assert sum(found.hbm_bytes.values()) <= board.hbm.capacity_bytes
    assert first.attention_s < last.attention_s
    assert last.fc_s < first.fc_s


def test_figure_16_counts_decoder_layers_and_no_host() -> None:
    timing = timing_of(spec_of(ground.H2M2))
    assert (timing.host_fixed, timing.host_per_request, timing.lm_head) == (0, 0, False)
    assert timing.translated
    assert not timing_of(spec_of(ground.ORACLE)).translated
    assert timing_of(spec_of(fig16.SMALLER)).shares == (0.25, 0.25)


def test_figure_16_replays_the_same_requests_for_every_policy() -> None:
    frame = made("h2m2-fig16").frame
    assert len(frame) == len(fig16.SEEDS) * 8 * 128
    kv = frame.pivot_table(index=["seed", "iteration"], columns="way", values="kv_gb")
    assert (kv.nunique(axis=1) == 1).all()
    assert (frame[frame["way"] == "LPDDR-only"]["speed_up"] == 1).all()
    # 32 requests of 1024 tokens on average, 96 layers of K and V of 12288 bytes.
    assert kv["H2M2"].mean() == pytest.approx(32 * 1024 * 96 * 2 * 12288 / 1e9, rel=0.15)


def test_figure_16_s_iterations_take_what_their_mapping_takes() -> None:
    outcome = outcome_of(ground.H2M2, 1)
    done, memory = outcome.iterations, outcome.memory
    assert memory is not None
    for at, moment in enumerate(moments(outcome, 1)):
        heads = (int(memory[name][at]) for name in ("qkv_heads", "attention_groups", "fc_heads"))
        by_hand = time_of(ground.original(), model(MODEL), Mapping(*heads), moment, translated=True)
        # Ticks of 0.1 ns, rounded a slice at a time.
        assert done["duration_s"][at] - memory["moving_s"][at] == pytest.approx(by_hand.iteration_s, rel=1e-6)
        assert moment.kv_tokens == done["kv_tokens"][at] + 32


def test_figure_16_gains_from_counting_to_the_byte() -> None:
    means = made("h2m2-fig16").frame.groupby("way")["speed_up"].mean()
    for way, words in fig16.EXACTLY.items():
        assert means[words] > means[way.words]


def test_figure_16_moves_data_only_where_the_mapping_changes() -> None:
    frame = made("h2m2-fig16").frame
    assert frame[frame["way"] == "LPDDR-only"]["moved_gb"].sum() == 0
    moved = frame[(frame["way"] == "H2M2") & (frame["moved_gb"] > 0)]
    assert 0 < len(moved) < len(fig16.SEEDS) * 128
    # No faster than LPDDR can take it.
    assert (moved["moved_gb"] / (moved["moving_ms"] / 1000) <= 544).all()
