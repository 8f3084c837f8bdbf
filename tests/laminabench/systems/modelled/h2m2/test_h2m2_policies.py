"""Mapping policies against every mapping there is, on models small enough to try them all."""

from __future__ import annotations

import itertools
from typing import Any

import h2m2_reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laminabench import _sim
from laminabench.systems.modelled.h2m2 import boards

SEEDS = st.integers(0, 2**32 - 1)
SHARES = st.floats(0, 1)


Case = tuple[Any, Any, Any]


def planned(case: Case, policy: str, **given: Any) -> dict[str, Any] | None:
    board, shape, moment = case
    requested = {"translated": False, "weights_share": 0.0, "kv_share": 0.0, **given}
    return _sim.h2m2_plan(board=board, shape=shape, policy=policy, moment=moment, **requested)


def whole_layers(case: Case) -> dict[tuple[int, ...], float]:
    """Times of all mappings of whole layers that fit."""
    board, shape, moment = case
    layers, counts = shape["layers"], h2m2_reference.counts(shape)
    all_of = h2m2_reference.bytes_of(shape, counts, moment[1])
    units = h2m2_reference.units(shape, moment[1]).values()
    sizes = [count * unit / layers for count, unit in zip(counts, units, strict=True)]
    hbm, lpddr = board["hbm"]["capacity_bytes"], board["lpddr"]["capacity_bytes"]
    times = {}
    for mapping in itertools.product(range(layers + 1), repeat=3):
        in_hbm = sum(n * size for n, size in zip(mapping, sizes, strict=True))
        if in_hbm <= hbm and all_of - in_hbm <= lpddr:
            times[mapping] = h2m2_reference.layers_plan(*case, mapping, False)
    return times


def choice_of(policy: str, case: Case) -> dict[tuple[int, ...], float]:
    """The mappings that a policy is to find the best of, with their times."""
    if policy == "naive":
        return whole_layers(case)
    every: dict[tuple[int, ...], float] = h2m2_reference.times_of_all(*case)
    if policy == "oracle" or not every:
        return every
    place = ("q-major", "a-major", "f-major").index(policy)
    most = max(mapping[place] for mapping in every)
    return {mapping: time for mapping, time in every.items() if mapping[place] == most}


@settings(deadline=None, max_examples=180)
@given(seed=SEEDS, policy=st.sampled_from(["oracle", "naive", "q-major", "a-major", "f-major"]))
def test_the_best_of_its_choice_is_found(seed: int, policy: str) -> None:
    case = h2m2_reference.random_case(seed)
    choice = choice_of(policy, case)
    result = planned(case, policy)
    assert (result is None) == (not choice)
    if result is not None:
        assert result["mapping"][3] == (policy == "naive")
        assert result["mapping"][:3] in choice
        assert result["iteration_ns"] == pytest.approx(min(choice.values()), rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS)
def test_greedy_takes_the_cheapest_number_sublayer_by_sublayer(seed: int) -> None:
    case = h2m2_reference.random_case(seed)
    result = planned(case, "greedy")
    if result is None:
        assert not h2m2_reference.possible_mappings(*case)
    else:
        assert h2m2_reference.is_greedy(*case, result["mapping"][:3])


def test_greedy_knows_when_a_group_shares_what_is_read() -> None:
    """32 KV groups of 16 heads: re-read, both sides are as slow as their memory; shared, HBM's units are."""
    shape = h2m2_reference.random_case(0)[1] | {"heads": 512, "kv_heads": 32, "head_dim": 128}
    native = boards.board("h2m2").native()
    moment = (32, 32 * 64, 32 * 2)
    result = {
        reread: planned((native | {"reread_kv": reread}, shape, moment), "greedy") for reread in (True, False)
    }
    # 32 x 2460 / (2460 + 446) and 32 x 16384 / (16384 + 16 x 446), the nearer whole number of each.
    assert {reread: plan and plan["mapping"][1] for reread, plan in result.items()} == {True: 27, False: 22}


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, weights=SHARES, kv=SHARES)
def test_flexgen_keeps_its_shares_and_gives_up_kv_first(seed: int, weights: float, kv: float) -> None:
    case = h2m2_reference.random_case(seed)
    shape = case[1]
    result = planned(case, "flexgen", weights_share=weights, kv_share=kv)
    possible = h2m2_reference.possible_mappings(*case)
    assert (result is None) == (not possible)
    if result is None:
        return
    chosen = result["mapping"][:3]
    assert chosen in possible
    heads = wanted_heads(weights, shape["heads"], chosen[0])
    with_weights = [mapping for mapping in possible if (mapping[0], mapping[2]) == (heads, heads)]
    if with_weights:
        assert (chosen[0], chosen[2]) == (heads, heads)
        nearest = min(abs(mapping[1] - kv * shape["kv_heads"]) for mapping in with_weights)
        assert abs(chosen[1] - kv * shape["kv_heads"]) == pytest.approx(nearest, abs=1e-9)


def wanted_heads(share: float, heads: int, chosen: int) -> int:
    """The nearest whole number; of two that are as near, the one chosen."""
    exact = share * heads
    return chosen if abs(chosen - exact) == 0.5 else round(exact)


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS)
def test_those_that_compute_at_one_memory(seed: int) -> None:
    board, shape, moment = case = h2m2_reference.random_case(seed)
    total = h2m2_reference.bytes_of(shape, h2m2_reference.counts(shape), moment[1])
    hbm, lpddr = board["hbm"], board["lpddr"]

    result = planned(case, "lpddr")
    assert (result is None) == (total > lpddr["capacity_bytes"])
    if result is not None:
        expected = h2m2_reference.alone(board, lpddr, shape, moment)
        assert result["iteration_ns"] == pytest.approx(expected, rel=1e-9)
        assert result["hbm_busy_ns"] == 0

    result = planned(case, "hierarchical")
    assert (result is None) == (total > hbm["capacity_bytes"] + lpddr["capacity_bytes"])
    if result is not None:
        computing = h2m2_reference.alone(board, hbm, shape, moment)
        rate = min(board["link_bytes_per_ns"], h2m2_reference.bandwidth(board, lpddr))
        moving = max(0.0, total - hbm["capacity_bytes"]) / rate
        hidden = board["hierarchical_overlap"] * min(computing, moving)
        assert result["iteration_ns"] == pytest.approx(computing + moving - hidden, rel=1e-9)

    result = planned(case, "8-hbm")
    devices = board["hbm_devices"]
    assert (result is None) == (total > devices * hbm["capacity_bytes"])
    if result is not None:
        together = hbm | {"bytes_per_ns": devices * hbm["bytes_per_ns"]}
        expected = h2m2_reference.alone(board, together, shape, moment)
        expected += 4 * shape["layers"] * board["hbm_barrier_ns"]
        assert result["iteration_ns"] == pytest.approx(expected, rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(
    seed=SEEDS,
    side=st.sampled_from(["hbm", "lpddr"]),
    what=st.sampled_from(["capacity_bytes", "bytes_per_ns", "chips"]),
    times=st.integers(2, 4),
)
def test_more_of_anything_never_slows_the_oracle(seed: int, side: str, what: str, times: int) -> None:
    board, shape, moment = case = h2m2_reference.random_case(seed)
    before = planned(case, "oracle")
    more = board | {side: board[side] | {what: board[side][what] * times}}
    after = planned((more, shape, moment), "oracle")
    if before is not None:
        assert after is not None
        assert after["iteration_ns"] <= before["iteration_ns"] * (1 + 1e-12)


def test_translation_changes_the_time_and_not_the_mapping() -> None:
    case = next(
        case for case in map(h2m2_reference.random_case, range(100)) if planned(case, "oracle") is not None
    )
    case[0].update(tlb_entries=1, tlb_miss_ns=100.0)
    for policy in ("greedy", "oracle", "naive", "a-major"):
        plain, translated = planned(case, policy), planned(case, policy, translated=True)
        assert plain is not None
        assert translated is not None
        assert translated["mapping"] == plain["mapping"]
        assert translated["iteration_ns"] > plain["iteration_ns"]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown mapping policy: best"):
        planned(h2m2_reference.random_case(0), "best")


def test_decisions_are_timed_moment_by_moment() -> None:
    board, shape, moment = h2m2_reference.random_case(0)
    ample = board | {"lpddr": board["lpddr"] | {"capacity_bytes": 1e15}}
    timed = _sim.h2m2_decide(board=ample, shape=shape, policy="greedy", moments=[moment] * 3, repeats=2)
    assert len(timed) == 3
    assert min(timed) > 0
    small = board | {side: board[side] | {"capacity_bytes": 1.0} for side in ("hbm", "lpddr")}
    with pytest.raises(ValueError, match="does not fit"):
        _sim.h2m2_decide(board=small, shape=shape, policy="greedy", moments=[moment], repeats=1)
