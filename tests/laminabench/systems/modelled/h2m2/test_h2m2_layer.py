"""A layer replayed block by block: DRAM and TLB by arithmetic, the layer by the closed formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from laminabench import _sim
from laminabench.catalog.find_model import model
from laminabench.systems.modelled.h2m2.boards import board
from laminabench.systems.modelled.h2m2.layer import SIDES, Reading, efficiency, load_drams, replay_side
from laminabench.systems.modelled.h2m2.mapping import Mapping, plan, uniform

# One channel of two bank groups of two banks; rows of 256 bytes, bursts of 32.
SMALL: dict[str, Any] = {
    "channels": 1,
    "groups": 2,
    "banks_per_group": 2,
    "row_bytes": 256,
    "burst_bytes": 32,
    "queue": 32,
    "burst_ns": 2.0,
    "same_group_ns": 4.0,
    "activate_ns": 14.0,
    "precharge_ns": 13.0,
    "open_ns": 34.0,
    "read_to_precharge_ns": 6.0,
    "between_rows_ns": 3.0,
    "four_rows_ns": 40.0,
    "refresh_every_ns": 0.0,
    "refresh_ns": 0.0,
}
BLOCK = 512  # a row of each group
SAME_BANK = 2 * BLOCK  # from one row to the next


def read(reads: list[tuple[int, int]], **differs: Any) -> dict[str, Any]:
    return _sim.h2m2_read_dram(dram=SMALL | differs, reads=reads)


def test_rows_in_sequence_keep_the_bus_busy() -> None:
    blocks = 200
    result = read([(BLOCK * i, BLOCK) for i in range(blocks)])
    # The first rows' activation, of which the second is 3 ns later and its burst only 2; all others are
    # opened while the bus is busy.
    assert result["ns"] == pytest.approx(14 + 1 + blocks * 16 * 2)
    assert result["bytes"] == 32 * result["bursts"] == blocks * BLOCK
    assert (result["hits"], result["opened"], result["conflicts"]) == (0, 4, 2 * blocks - 4)
    # Seen eight bursts ahead, closing a row and opening the next two shows: 13 + 14, 3 - 2 for the second.
    short = read([(BLOCK * i, BLOCK) for i in range(blocks)], queue=8)
    assert short["ns"] == pytest.approx(result["ns"] + (blocks - 2) * (13 + 14 + 1 - 8 * 2))


def test_refreshes_take_what_they_take() -> None:
    blocks, every, lasts = 2000, 2000.0, 200.0
    result = read([(BLOCK * i, BLOCK) for i in range(blocks)], refresh_every_ns=every, refresh_ns=lasts)
    # Each closes all banks (tRTP less the last burst's two, tRP), refreshes, and the next row is opened anew.
    lost = result["refreshes"] * (13 + lasts + 14)
    assert result["refreshes"] == pytest.approx(result["ns"] / every, abs=1)
    assert result["ns"] == pytest.approx(blocks * 32 + lost, rel=0.005)


def test_a_stride_that_stays_in_one_bank_pays_for_every_row() -> None:
    reads = 100
    result = read([(SAME_BANK * i, 32) for i in range(reads)])
    # A row is open for 34 ns at least: longer than 14 until its read and 6 until it may be closed.
    assert result["ns"] == pytest.approx((reads - 1) * (34 + 13) + 14 + 2)
    assert (result["opened"], result["conflicts"]) == (1, reads - 1)
    slow = read([(SAME_BANK * i, 32) for i in range(reads)], open_ns=10.0)
    assert slow["ns"] == pytest.approx((reads - 1) * (14 + 6 + 13) + 14 + 2)


def test_four_rows_take_their_window_and_one_group_its_pause() -> None:
    many = {"groups": 1, "banks_per_group": 64, "same_group_ns": 0.0}
    reads = 60
    result = read([(256 * i, 32) for i in range(reads)], **many)
    # Four activations 3 ns apart every 40 ns.
    assert result["ns"] == pytest.approx((reads // 4 - 1) * 40 + 3 * 3 + 14 + 2)
    within = read([(64 * i, 32) for i in range(8)])
    assert within["ns"] == pytest.approx(14 + 7 * 4 + 2)
    assert within["hits"] == 7


def test_channels_work_concurrently() -> None:
    one = read([(BLOCK * i, BLOCK) for i in range(64)])["ns"]
    four = read([(BLOCK * i, BLOCK) for i in range(64)], channels=4)["ns"]
    assert four - 14 == pytest.approx((one - 14) / 4, rel=0.01)


def test_a_tlb_holds_what_it_reaches_and_walks_so_many_at_once() -> None:
    def known(requested: list[tuple[int, float]], entries: int = 4, walks: int = 2) -> list[float]:
        return _sim.h2m2_translate(entries=entries, miss_ns=300.0, walks_at_once=walks, requested=requested)

    assert known([(page, 0.0) for page in range(4)]) == [300, 300, 600, 600]
    # A request for a page that is being walked waits for that walk.
    assert known([(0, 0.0), (0, 10.0), (0, 400.0)]) == [300, 300, 400]
    again = [(page, 1000.0 * turn) for turn in range(1, 4) for page in range(4)]
    assert [at - requested for at, (_, requested) in zip(known(again)[4:], again[4:], strict=True)] == [0] * 8
    # One page more than it holds, and the least recently used one is always the next.
    more = [(page, 1000.0 * (5 * turn + page)) for turn in range(3) for page in range(5)]
    assert all(at - requested == 300 for at, (_, requested) in zip(known(more), more, strict=True))


CASES = [("gpt3-175b", 32, 512), ("chinchilla-70b", 64, 512), ("llama2-70b", 128, 256)]


def greedy(name: str, batch: int, length: int, **assumed: Any) -> Mapping:
    where = replace(board("h2m2"), **assumed)
    return plan(where, model(name), "greedy", uniform(batch, length, where)).mapping


@pytest.mark.parametrize(("name", "batch", "length"), CASES)
@pytest.mark.parametrize("reading", [Reading(), Reading(in_turn=True)], ids=["following", "in turn"])
def test_every_byte_is_read_once_as_often_as_the_formulas_say(
    name: str, batch: int, length: int, reading: Reading
) -> None:
    mapping = greedy(name, batch, length)
    for side in SIDES:
        result = replay_side(board("h2m2"), model(name), mapping, [length] * batch, side, reading)
        for kernel in result.kernels:
            assert kernel.bytes == pytest.approx(kernel.closed_bytes, abs=8), (side, kernel.kernel)
            burst = load_drams()["hbm3" if side == "hbm" else "lpddr5x"].timings["burst_bytes"].value
            # Whole bursts, of which ends share one.
            assert kernel.bytes <= kernel.bursts * burst <= 1.02 * kernel.bytes


def test_requests_of_any_lengths_are_read_where_their_slots_are() -> None:
    lengths = [1, 8191, 8192, 3, 20_000, 500]
    shape, mapping = model("llama2-70b"), Mapping(32, 3, 32)
    for side, groups in zip(SIDES, (3, 5), strict=True):
        attention = replay_side(board("h2m2"), shape, mapping, lengths, side).kernels[1]
        assert attention.bytes == 8 * groups * 2 * 128 * sum(lengths)
        # Each of five columns is a page of the layer and group.
        assert attention.misses == 5 * groups


IDEAL = {
    **dict.fromkeys(("same_group_ns", "activate_ns", "precharge_ns", "open_ns", "read_to_precharge_ns"), 0.0),
    **dict.fromkeys(("between_rows_ns", "four_rows_ns", "refresh_every_ns", "refresh_ns"), 0.0),
}


@pytest.mark.parametrize(("name", "batch", "length"), CASES)
@pytest.mark.parametrize("weight_load", ["before", "behind"])
def test_without_conflicts_it_is_the_closed_formulas(
    name: str, batch: int, length: int, weight_load: str
) -> None:
    where = replace(board("h2m2"), dram_efficiency=1.0, weight_load=weight_load)
    shape, mapping = model(name), greedy(name, batch, length, dram_efficiency=1.0, weight_load=weight_load)
    for side, kind in zip(SIDES, ("hbm3", "lpddr5x"), strict=True):
        dram = load_drams()[kind].native() | IDEAL | {"channels": 1, "queue": 2**20}
        reading = Reading(in_turn=True, translated=False)
        result = replay_side(where, shape, mapping, [length] * batch, side, reading, dram=dram)
        memory = where.hbm if side == "hbm" else where.lpddr
        rows = {"qkv": shape.hidden, "attention": 0, "projection": shape.heads * shape.head_dim}
        rows |= {"up": shape.hidden, "down": shape.intermediate}
        for kernel in result.kernels:
            assert kernel.seconds >= kernel.closed_s * (1 - 1e-9)
            # The first tile waits for the activations; then what a tile, or a request's KV, takes before the
            # first is there or after the last.
            activations_s = batch * rows[kernel.kernel] / memory.bandwidth_bytes_per_s
            most_s = kernel.closed_s + activations_s
            assert kernel.seconds <= most_s * 1.005 + 1e-6, kernel.kernel


def test_a_replay_is_the_same_every_time_and_misses_each_page_once() -> None:
    name, batch, length = CASES[0]
    shape, mapping = model(name), greedy(*CASES[0])
    first, again = (replay_side(board("h2m2"), shape, mapping, [length] * batch, "lpddr") for _ in range(2))
    assert first == again
    weights = (96 - mapping.qkv) * 12288 * 384 + (96 - mapping.fc) * 9 * 12288 * 128
    pages = weights / 2**21 + (96 - mapping.attention) * 2
    # Activations have a few more, and a matrix begins where the one before it ends.
    assert pages <= first.misses <= pages + 24


def test_what_the_memory_alone_reaches_is_below_its_peak_and_above_its_refreshes() -> None:
    reading = Reading(in_turn=True, translated=False, computed=False)
    for side, kind in zip(SIDES, ("hbm3", "lpddr5x"), strict=True):
        dram = load_drams()[kind].native() | {"queue": 4096}
        result = replay_side(
            board("h2m2"), model("gpt3-175b"), Mapping(48, 48, 48), [1024] * 32, side, reading, dram=dram
        )
        timings = load_drams()[kind].timings
        refreshed = 1 - timings["refresh_ns"].value / timings["refresh_every_ns"].value
        assert 0.8 < efficiency(board("h2m2"), side, result) < refreshed


def test_unpacked_tiles_open_a_row_for_every_column() -> None:
    where, shape, mapping = board("h2m2"), model("llama2-70b"), Mapping(32, 7, 56)
    packed, unpacked = (
        replay_side(where, shape, mapping, [16] * 8, "lpddr", Reading(packed=packed))
        for packed in (True, False)
    )
    assert unpacked.bytes == pytest.approx(packed.bytes, abs=8)
    assert sum(each.conflicts for each in unpacked.kernels) > 10 * sum(
        each.conflicts for each in packed.kernels
    )
    assert unpacked.seconds > packed.seconds


def test_a_layer_that_is_not_split_is_refused() -> None:
    with pytest.raises(ValueError, match="not split"):
        replay_side(board("h2m2"), model("gpt3-175b"), Mapping(1, 1, 1, True), [16], "hbm")


def test_every_timing_has_a_source() -> None:
    for dram in load_drams().values():
        assert set(dram.timings) == set(SMALL)
        for timing in dram.timings.values():
            assert timing.kind in ("data sheet", "simulator", "assumed")
            assert timing.source
