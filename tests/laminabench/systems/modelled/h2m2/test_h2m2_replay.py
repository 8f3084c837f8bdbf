"""Replays on boards: memory holds whatever comes, and iterations take what mapping and lengths say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_outcome import trace_of
from numpy.typing import NDArray

from laminabench.catalog.models import ModelShape
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Admission, Spec
from laminabench.systems.modelled.h2m2.boards import Board, board
from laminabench.systems.modelled.h2m2.mapping import Mapping, load_of, plan, time_of
from laminabench.systems.modelled.h2m2.timing import POLICIES, BoardTiming
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError

PAGE = 8192
UNMAPPED = ("lpddr", "hierarchical", "8-hbm")
MAPPED = tuple(name for name in POLICIES if name not in UNMAPPED)
SMALL = ModelShape("small", 3, 96, 6, 3, 16, 200, 500)  # 256 tokens of a KV head in a page
TICK = 1e-10


def small_board(hbm_pages: int = 60, lpddr_pages: int = 200, **changes: Any) -> Board:
    """The paper's board with memories of a few pages."""
    result = board("h2m2")
    hbm = replace(result.hbm, capacity_bytes=float(hbm_pages * PAGE))
    lpddr = replace(result.lpddr, capacity_bytes=float(lpddr_pages * PAGE))
    return replace(result, hbm=hbm, lpddr=lpddr, page_bytes=float(PAGE), **changes)


def spec_of(timing: BoardTiming, *, tokens: int | None = None, most: int = 12, **more: Any) -> Spec:
    room, _ = timing.kv_room()
    return Spec(
        timing.model.layers,
        timing,
        tokens_per_pool=room if tokens is None else tokens,
        max_requests=most,
        pipelining="serial",
        shared_devices=True,
        **more,
    )


def some_trace(seed: int, rows: int = 60, mean_output: int = 40) -> Trace:
    rng = np.random.default_rng(seed)
    return trace_of(rng.integers(1, 250, rows).tolist(), rng.geometric(1 / mean_output, rows).tolist())


def lengths_of(trace: Trace, outcome: Outcome) -> list[list[int]]:
    """Return what each iteration's requests read, with the token being made; none was preempted."""
    results: list[list[int]] = [[] for _ in outcome.iterations["start_s"]]
    of = (outcome.requests["first_iteration"], outcome.requests["last_iteration"], trace.prompt_tokens)
    for first, last, prompt in zip(*(column.tolist() for column in of), strict=True):
        for made, iteration in enumerate(range(first, last + 1)):
            results[iteration].append(prompt + made + 1)
    return results


@st.composite
def cases(draw: st.DrawFn) -> tuple[Trace, Spec]:
    """A few requests on a small board, by any policy, in all the memory there is or in less."""
    kv_heads = draw(st.sampled_from([1, 2, 3, 6]))
    model = replace(SMALL, kv_heads=kv_heads, layers=draw(st.integers(1, 4)), gated_mlp=draw(st.booleans()))
    on = small_board(draw(st.integers(20, 120)), draw(st.integers(150, 400)))
    timing = BoardTiming(
        on,
        model,
        draw(st.sampled_from(POLICIES)),
        shares=(draw(st.floats(0, 1)), draw(st.floats(0, 1))),
        overlap_moves=draw(st.booleans()),
        recompute_per_token=1e-6,
    )
    room, _ = timing.kv_room()
    rows = draw(st.lists(st.tuples(st.integers(1, 600), st.integers(1, 60)), min_size=1, max_size=30))
    admission: Admission = draw(st.sampled_from(["reserve", "grow"]))
    tokens = draw(st.integers(1, max(1, room)))
    spec = spec_of(timing, tokens=tokens, most=draw(st.integers(1, 12)), admission=admission)
    return trace_of([prompt for prompt, _ in rows], [output for _, output in rows]), spec


@settings(deadline=None, max_examples=60)
@given(cases())
def test_what_the_scheduler_lets_in_always_fits_and_every_request_ends(case: tuple[Trace, Spec]) -> None:
    trace, spec = case
    timing = spec.timing
    assert isinstance(timing, BoardTiming)
    if timing.kv_room()[0] < 1:
        return
    outcome = simulate(trace, spec, Offered(), check=True)  # check: pages and tokens recounted every time
    too_long = trace.prompt_tokens + trace.output_tokens > spec.tokens_per_pool
    assert np.isnan(outcome.requests["finished_s"]).tolist() == too_long.tolist()
    assert outcome.iterations["size"].sum() == trace.output_tokens[~too_long].sum()
    memory = outcome.memory
    assert (memory is None) == (timing.mapping in UNMAPPED)
    if memory is None:
        return
    assert {len(column) for column in memory.values()} == {len(outcome.iterations["start_s"])}
    used = np.sum([memory[f"hbm_{part}_bytes"] for part in ("qkv", "kv", "fc", "free")], axis=0)
    assert set(used.tolist()) <= {timing.board.hbm.capacity_bytes // PAGE * PAGE}
    assert (memory["lpddr_bytes"] <= timing.board.lpddr.capacity_bytes).all()
    assert min(column.min(initial=0) for column in memory.values()) >= 0
    assert (memory["hidden_s"] <= memory["moving_s"]).all()
    assert (memory["hbm_busy_s"] <= outcome.iterations["duration_s"] + TICK).all()


@pytest.mark.parametrize("policy", MAPPED)
def test_an_iteration_takes_what_its_mapping_and_its_requests_say(policy: str) -> None:
    timing = BoardTiming(
        small_board(), SMALL, policy, shares=(0.4, 0.5), host_fixed=1e-5, host_per_request=1e-7
    )
    trace = some_trace(3)
    outcome = simulate(trace, spec_of(timing), Offered(), check=True)
    memory, rows = outcome.memory, outcome.iterations
    assert memory is not None
    lengths = lengths_of(trace, outcome)
    assert rows["size"].tolist() == [len(each) for each in lengths]
    heads = zip(
        *(memory[name].tolist() for name in ("qkv_heads", "attention_groups", "fc_heads")), strict=True
    )
    plans = [
        time_of(
            timing.board,
            SMALL,
            Mapping(*mapping, policy == "naive"),
            load_of(each, timing.board),
            translated=True,
            lm_head=True,
        )
        for mapping, each in zip(heads, lengths, strict=True)
    ]
    model_s = np.array([each.iteration_s for each in plans])
    host_s = 1e-5 + 1e-7 * rows["size"]
    # Parts of a layer are rounded to ticks.
    close = SMALL.layers * 4 * TICK
    assert rows["duration_s"] == pytest.approx(model_s + host_s + memory["moving_s"], abs=close)
    attention_s = np.array([SMALL.layers * each.attention_s for each in plans])
    assert rows["attention_s"] == pytest.approx(attention_s, abs=close)
    exchange_s = np.array([SMALL.layers * each.exchange_s for each in plans])
    assert rows["network_s"] == pytest.approx(exchange_s, abs=close)
    for side in ("hbm", "lpddr"):
        busy_s = np.array([getattr(each, f"{side}_busy_s") for each in plans])
        assert memory[f"{side}_busy_s"] == pytest.approx(busy_s, abs=close)


@pytest.mark.parametrize("policy", UNMAPPED)
def test_without_two_sides_an_iteration_takes_what_its_policy_says(policy: str) -> None:
    timing = BoardTiming(small_board(lpddr_pages=300), SMALL, policy)
    trace = some_trace(4)
    outcome = simulate(trace, spec_of(timing), Offered(), check=True)
    expected = [
        plan(timing.board, SMALL, policy, load_of(each, timing.board), lm_head=True).iteration_s
        for each in lengths_of(trace, outcome)
    ]
    assert outcome.iterations["duration_s"] == pytest.approx(expected, abs=SMALL.layers * 4 * TICK)
    assert outcome.memory is None


def moving_s(timing: BoardTiming, memory: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    """What crosses takes the slower of link and LPDDR; what is copied within a side is read and written."""
    on = timing.board
    reads = {side: side.bandwidth_bytes_per_s * on.dram_efficiency for side in (on.hbm, on.lpddr)}
    across = memory["moved_bytes"] / min(on.link_bytes_per_s, reads[on.lpddr])
    in_hbm = memory["compacted_bytes"] * memory["attention_groups"] / SMALL.kv_heads
    within = np.maximum(
        2 * in_hbm / reads[on.hbm], 2 * (memory["compacted_bytes"] - in_hbm) / reads[on.lpddr]
    )
    result: NDArray[np.float64] = across + within
    return result


def test_moving_takes_its_time_and_may_hide_behind_the_iteration_before() -> None:
    timing = BoardTiming(small_board(), SMALL, "greedy", translated=False)
    trace = some_trace(5, rows=150)
    waits, hides = (
        simulate(trace, spec_of(replace(timing, overlap_moves=overlap)), Offered(), check=True)
        for overlap in (False, True)
    )
    assert waits.memory is not None
    assert hides.memory is not None
    assert (waits.memory["moved_bytes"] > 0).sum() > 5
    assert (waits.memory["compacted_bytes"] > 0).sum() > 2
    assert (waits.memory["moved_bytes"] % PAGE == 0).all()
    assert waits.memory["moving_s"] == pytest.approx(moving_s(timing, waits.memory), abs=2 * TICK)
    saved = waits.memory["hidden_s"]
    assert saved[0] == 0
    assert 0 < saved.sum() <= waits.memory["moving_s"].sum()
    assert hides.iterations["duration_s"] == pytest.approx(
        waits.iterations["duration_s"] - saved, abs=2 * TICK
    )


def test_kv_takes_no_more_columns_than_its_tokens_fill() -> None:
    """Requests that end are spread over the columns: the rest is compacted."""
    timing = BoardTiming(small_board(), SMALL, "oracle", translated=False)
    _, slots = timing.kv_room()
    assert slots == PAGE // (2 * SMALL.head_dim) == 256
    outcome = simulate(some_trace(6, rows=100, mean_output=150), spec_of(timing), Offered(), check=True)
    memory, rows = outcome.memory, outcome.iterations
    assert memory is not None
    in_hbm = memory["attention_groups"] > 0
    assert in_hbm.mean() > 0.5
    pages = memory["hbm_kv_bytes"][in_hbm] / (PAGE * SMALL.layers * memory["attention_groups"][in_hbm])
    tokens = (rows["kv_tokens"] + rows["size"])[in_hbm]
    assert pages.tolist() == [math.ceil(each / slots) for each in tokens.tolist()]
    assert len(set(pages.tolist())) > 4
    content = sum(timing_weights(timing)) + tokens * SMALL.kv_bytes_per_token // 2
    stored = sum(memory[f"hbm_{part}_bytes"] for part in ("qkv", "kv", "fc")) + memory["lpddr_bytes"]
    assert (memory["wasted_bytes"][in_hbm] == stored[in_hbm] - content).all()


def timing_weights(timing: BoardTiming) -> list[int]:
    model = timing.model
    matrices = model.layer_gemms()
    return [model.layers * sum(gemm.n * gemm.k for gemm in matrices), model.vocab * model.hidden]


def test_a_preempted_request_frees_its_memory_and_recomputes() -> None:
    timing = BoardTiming(small_board(), SMALL, "greedy", recompute_per_token=1e-4)
    # Eleven requests of which three fit when they are long.
    trace = trace_of([100] * 11, [400] * 11)
    spec = spec_of(timing, tokens=1600, admission="grow")
    outcome = simulate(trace, spec, Offered(), check=True)
    free = simulate(
        trace, replace(spec, timing=replace(timing, recompute_per_token=0.0)), Offered(), check=True
    )
    assert outcome.requests["preemptions"].sum() > 5
    assert (outcome.requests["preemptions"] == free.requests["preemptions"]).all()
    again = [
        (request, first)
        for request, first in zip(
            *(outcome.stints[n].tolist() for n in ("request", "first_iteration")), strict=True
        )
        if first != outcome.requests["first_iteration"][request]
    ]
    tokens = 0
    for request, first in again:
        own = outcome.stints["request"] == request
        before = own & (outcome.stints["last_iteration"] < first)
        lasted = outcome.stints["last_iteration"][before] - outcome.stints["first_iteration"][before] + 1
        tokens += 100 + int(lasted.sum())
    assert outcome.end_s - free.end_s == pytest.approx(1e-4 * tokens, rel=1e-6)


def test_progress_is_reported_often_although_board_iterations_are_slow() -> None:
    messages: list[int] = []
    spec = spec_of(BoardTiming(small_board(), SMALL, "greedy"))
    simulate(trace_of([10, 10], [1000, 1500]), spec, Offered(), progress=messages.append)
    assert messages == [0, 1, 2]


@pytest.mark.parametrize("mapping", ["greedy", "lpddr"])
def test_iterations_of_more_than_an_hour_are_refused(mapping: str) -> None:
    timing = BoardTiming(small_board(dram_efficiency=1e-12), SMALL, mapping)
    with pytest.raises(UserError, match="costs-impossible-time"):
        simulate(trace_of([9], [2]), spec_of(timing), Offered())
