"""The recorded timeline against the definition, and recording against not recording."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_cases import arguments, in_ticks, native, random_arguments
from sim_drawn import drawn

ALWAYS = 2**50
COLUMNS = ("cycle", "slice", "batch", "worker", "start_s", "end_s")
Stretch = tuple[int, int, int, int, int, int]  # of those


def stretches(tables: dict[str, Any]) -> list[Stretch]:
    return list(zip(*(tables["timeline"][name] for name in COLUMNS), strict=True))


@pytest.fixture(
    scope="module",
    params=[pytest.param(seed, marks=[pytest.mark.long] if seed >= 4 else []) for seed in range(16)],
)
def recorded(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    given_ = random_arguments(request.param, record_to=ALWAYS)
    return given_, in_ticks(native(**given_))


def test_slices_go_round_the_replicas(recorded: tuple[dict[str, Any], dict[str, Any]]) -> None:
    given_, tables = recorded
    n, layers = given_["batches"], given_["layers"]
    for cycle, number, batch, worker, _, _ in stretches(tables):
        k = cycle * (layers + 1) + number
        if worker >= 0:
            assert worker == ((batch + k) % max(n - 1, 1) if given_["pipelining"] == "rotational" else batch)
    assert len(stretches(tables)) == len(tables["iterations"]["batch"]) * (2 * layers + 1)


def test_the_timeline_says_whose_iteration_it_shows(recorded: tuple[dict[str, Any], dict[str, Any]]) -> None:
    tables = recorded[1]
    names = ("batch", "iteration")
    observed = set(zip(*(tables["timeline"][name] for name in names), strict=True))
    assert observed == set(zip(*(tables["iterations"][name] for name in names), strict=True))
    # Its last slice ends with it.
    ends = {}
    for batch, iteration, end in zip(*(tables["timeline"][name] for name in (*names, "end_s")), strict=True):
        ends[batch, iteration] = end
    columns = (tables["iterations"][name] for name in (*names, "start_s", "duration_s"))
    for batch, iteration, start, duration in zip(*columns, strict=True):
        assert ends[batch, iteration] == start + duration


def test_no_worker_does_two_things_at_once(recorded: tuple[dict[str, Any], dict[str, Any]]) -> None:
    tables = recorded[1]
    for worker in {stretch[3] for stretch in stretches(tables)}:
        own = [stretch for stretch in stretches(tables) if stretch[3] == worker]
        for one, other in pairwise(own):
            assert one[:3] < other[:3]  # by k, then by batch
            assert one[5] <= other[4]


def test_slice_and_attention_take_turns(recorded: tuple[dict[str, Any], dict[str, Any]]) -> None:
    given_, tables = recorded
    costs = given_["costs"]
    sizes = zip(tables["iterations"]["batch"], tables["iterations"]["size"], strict=True)
    size_of: list[list[int]] = [[] for _ in range(given_["batches"])]
    for batch, size in sizes:
        size_of[batch].append(size)
    for batch in range(given_["batches"]):
        own = [stretch for stretch in stretches(tables) if stretch[2] == batch]
        per_iteration = 2 * given_["layers"] + 1
        for at, size in enumerate(size_of[batch]):
            work = own[at * per_iteration : (at + 1) * per_iteration]
            # A slice, its attention, the next slice, ... , the last slice, all of one cycle.
            assert len({stretch[0] for stretch in work}) == 1
            assert [stretch[1] for stretch in work] == [i // 2 for i in range(per_iteration)]
            assert [stretch[3] >= 0 for stretch in work] == [i % 2 == 0 for i in range(per_iteration)]
            cost = {name: int(table[size]) for name, table in costs.items() if isinstance(table, np.ndarray)}
            for slice_, attention, after in zip(work[::2], work[1::2], work[2::2], strict=False):
                assert attention[4] >= slice_[5] - cost["q_lead"] + cost["q_transfer"]
                assert attention[5] >= slice_[5] + cost["kv_transfer"] + costs["combine"]
                assert after[4] >= attention[5] + cost["out_transfer"]
                if given_["batches"] > 2 and given_["pipelining"] == "rotational":
                    assert after[4] >= slice_[5] + cost["migration"]
        for one, other in pairwise(own[:: 2 * given_["layers"] + 1]):
            assert one[0] < other[0]


@pytest.mark.long(but=["2-1", "3-7", "5-80"])
@pytest.mark.parametrize("layers", [1, 2, 3, 7, 80])
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_rotation_leaves_no_bubbles(n: int, layers: int) -> None:
    """n batches on n - 1 replicas, attention an (n - 1)-th of a slice: everyone works all the time.

    All slices take m = (n - 1) a and all attentions a. Once under way, batch j is a ahead of batch j + 1, and
    a batch's slice and attention take n a together, in which the attention workers serve n batches and the
    replicas n slices.

    Start-up: all batches begin at 0. Attention begins at m and then serves batch after batch, so slice 1 of
    batch j, on replica j + 1, starts at m + (j + 1) a: replica r > 0 has waited r a for it. Replica 0 has no
    gap: it runs slice 0 of batch n - 1 until 2 m, when attention of batch n - 2 is done.

    Between iterations: slice L of batch j is followed at once by slice 0, without attention between them. But
    the replica for it is the one that slice L of batch j + 1 leaves a later: no replica waits. (Slice 0 of
    batch n - 1 follows slice 0 of batch 0 on its replica, as in every round.) The stagger is kept, and
    attention, which has nothing to do for the one slice of L + 1 that has none, waits a round: n a.
    """
    a, tokens = 7, 4
    m = (n - 1) * a
    given_ = arguments(
        prompt=[1] * n,
        output=[tokens] * n,
        batches=n,
        layers=layers,
        max_requests=n,
        costs={"first_slice": m, "mid_slice": m, "last_slice": m, "attention_fixed": a},
        record_to=ALWAYS,
    )
    tables = in_ticks(native(**given_))
    assert tables["iterations"]["size"] == [1] * n * tokens

    work = stretches(tables)
    for replica in range(n - 1):
        own = [stretch for stretch in work if stretch[3] == replica]
        gaps = [(one[5], other[4]) for one, other in pairwise(own) if one[5] != other[4]]
        assert own[0][4] == 0
        assert gaps == ([(m, m + replica * a)] if replica else [])

    attention = [stretch for stretch in work if stretch[3] == -1]
    assert attention[0][4] == m
    for one, other in pairwise(attention):
        assert other[4] - one[5] == (0 if one[0] == other[0] else n * a)
    ends = tables["iterations"]
    assert [ends["start_s"][i + n] - ends["start_s"][i] for i in range(n, n * (tokens - 1))] == [
        (layers + 1) * n * a
    ] * (n * (tokens - 2))


def all_but_the_timeline(tables: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tables.items() if name != "timeline"}


@drawn
@given(seed=st.integers(0, 2**32))
def test_looking_changes_nothing(seed: int) -> None:
    # While it records, the simulator runs every layer; otherwise it skips those that repeat.
    plain = random_arguments(seed)
    watched = in_ticks(native(**plain | {"record_to": ALWAYS}))
    assert all_but_the_timeline(in_ticks(native(**plain))) == all_but_the_timeline(watched)


@st.composite
def long_runs(draw: st.DrawFn) -> dict[str, Any]:
    """Few requests on many layers, with costs that let rounds repeat at once, late, or never."""
    n = draw(st.integers(1, 5))
    cost = st.one_of(st.integers(0, 3), st.integers(0, 100))
    names = ("first_slice", "mid_slice", "last_slice", "q_transfer", "kv_transfer", "out_transfer")
    costs: dict[str, Any] = {name: draw(cost) for name in (*names, "migration", "attention_fixed", "combine")}
    costs["mid_slice"] = draw(cost) + draw(st.integers(0, 40)) * np.arange(11)  # batches may differ
    costs["attention_per_token"] = draw(st.sampled_from([0.0, 0.5, 3.0]))
    costs["host_fixed"] = draw(cost)
    rows = draw(st.integers(1, 10))
    return {
        "prompt": draw(st.lists(st.integers(1, 60), min_size=rows, max_size=rows)),
        "output": draw(st.lists(st.integers(1, 4), min_size=rows, max_size=rows)),
        "arrival": np.cumsum(draw(st.lists(st.integers(0, 9000), min_size=rows, max_size=rows))),
        "mode": draw(st.sampled_from(["saturate", "open"])),
        "batches": n,
        "pipelining": draw(st.sampled_from(["serial", "rotational", "fixed"])),
        "layers": draw(st.sampled_from([79, 80, 81])),  # what is left after whole turns differs
        "pools": draw(st.integers(1, 2)),
        "max_requests": 10,
        "costs": costs,
    }


@drawn
@given(case=long_runs())
def test_skipping_repeated_layers_is_exact(case: dict[str, Any]) -> None:
    plain = in_ticks(native(**arguments(**case)))
    watched = in_ticks(native(**arguments(**case, record_to=ALWAYS)))
    assert watched["timeline"]["batch"]
    assert all_but_the_timeline(plain) == all_but_the_timeline(watched)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_batches_are_distributed_evenly_over_attention_workers(workers: int) -> None:
    """Two batches of four equal requests: a worker reads its share of each, whatever their number."""
    given_ = arguments(
        prompt=[100] * 8,
        output=[9] * 8,
        batches=2,
        pools=workers,
        max_requests=8,
        costs={"attention_per_token": 1.0},
    )
    iterations = in_ticks(native(**given_))["iterations"]
    assert iterations["size"] == [4] * 18
    assert iterations["attention_s"] == [kv // workers for kv in iterations["kv_tokens"]]


def test_a_batch_with_prompts_is_distributed_evenly_too() -> None:
    """The first batch's long request is on one worker; the second's three short ones are on both."""
    none = dict.fromkeys(("per_row", "per_pair", "per_token"), 0.0)
    given_ = arguments(
        prompt=[300, 100, 100, 100],
        output=[2] * 4,
        batches=2,
        pools=2,
        max_requests=8,
        prompt_budget=300,
        costs={
            "attention_per_token": 1.0,
            "prompts": {**none, "fixed": 0, "head": np.zeros(301, int)},
        },
    )
    iterations = in_ticks(native(**given_))["iterations"]
    second = [at for at, batch in enumerate(iterations["batch"]) if batch == 1]
    assert [iterations["attention_s"][at] for at in second] == [0, 200]


def test_a_worker_without_room_is_passed_over() -> None:
    """The second batch's first request goes where it has room, though both have none of that batch."""
    given_ = arguments(
        prompt=[60, 70],
        output=[1, 1],
        batches=2,
        pools=2,
        tokens_per_pool=90,
        max_requests=2,
        costs={"attention_per_token": 1.0},
    )
    assert in_ticks(native(**given_))["requests"]["admitted_s"] == [0, 0]
