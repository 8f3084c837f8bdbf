"""Several instances and pools for prompts: the simulator is held to plain Python, to the tick."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import sim_fleet_reference
from hypothesis import given
from hypothesis import strategies as st
from sim_cases import arguments, flat_costs, in_ticks, native
from sim_drawn import cases, costs, differences, drawn, prompted_cases, rates

ROUTERS = ("round-robin", "least-requests", "least-kv", "prefix", "fit")


def by_length(prompt: int, output: int, prefix: Any, requests: Any, kv_tokens: Any) -> int:
    """A router of one's own, which looks at all that it is given."""
    return int(prompt + output + len(prefix) + kv_tokens[0] + requests[-1]) % len(requests)


PROMPTS = {"per_row": 0.0, "per_pair": 0.0, "per_token": 0.0, "fixed": 0, "head": np.zeros(101, int)}
POOL: dict[str, Any] = {
    "copies": 1,
    "batches": 1,
    "pipelining": "serial",
    "own_attention": False,
    "layers": 1,
    "pools": 1,
    "tokens_per_pool": 30,
    "block_tokens": 1,
    "request_tokens": 0,
    "admission": "reserve",
    "max_requests": 4,
    "min_batch": 1,
    "prompt_budget": 50,
    "prefix_sharing": True,
    "costs": flat_costs(50, mid_slice=1, prompts=PROMPTS),
    "latency": 3,
    "per_token": 1.0,
    "window": 7,
    "windowed_per_token": 2.0,
    "pulled": True,
}


@st.composite
def pools(draw: st.DrawFn) -> dict[str, Any]:
    budget, most = draw(st.integers(4, 80)), draw(st.integers(1, 4))
    table = draw(costs(max(most, budget)))
    prompts = {name: draw(rates) for name in ("per_row", "per_pair", "per_token")}
    head = draw(st.integers(0, 9)) + np.arange(budget + 26) * draw(st.integers(0, 3))
    table["prompts"] = {**prompts, "fixed": draw(st.integers(0, 9)), "head": head}
    one = arguments(prompt=[1], output=[1], max_requests=most, prompt_budget=budget, costs=table)
    return POOL | {
        "copies": draw(st.integers(1, 3)),
        "layers": draw(st.integers(1, 4)),
        "tokens_per_pool": draw(st.integers(30, 300)),
        "block_tokens": draw(st.sampled_from([1, 4, 16])),
        "request_tokens": draw(st.sampled_from([0, 0, 5])),
        "max_requests": most,
        "prompt_budget": budget,
        "costs": one["costs"],
        "latency": draw(st.integers(0, 200)),
        "per_token": draw(rates),
        "window": draw(st.sampled_from([0, 1, 7, 1000])),
        "windowed_per_token": draw(rates),
        "pulled": draw(st.booleans()),
    }


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Any]:
    case = draw(st.one_of(cases(), prompted_cases()))
    case |= {"record_to": 0, "threads": draw(st.integers(1, 3))}
    several = draw(st.integers(1, 4))
    room = st.integers(30, 300)
    alongside = st.sampled_from([0, 0, 5, 20])
    case["instances"] = [
        {"tokens_per_pool": draw(room), "request_tokens": draw(alongside)} for _ in range(several)
    ]
    if draw(st.booleans()):
        case |= {"prompt_budget": 0, "costs": draw(costs(case["max_requests"]))}
        pool = draw(pools())
        pool["costs"]["out"] = case["costs"].get("out", 0)  # one front end has all answers
        case["instances"] = [one | {"pool": pool} for one in case["instances"]]
    case["router"] = draw(st.sampled_from([*ROUTERS, by_length]))
    case["global_queue"] = draw(st.booleans())
    # Dealt beforehand, every instance has its own part of the concurrency.
    in_turn = case["router"] == "round-robin" and not case["global_queue"]
    if in_turn and (case["mode"] == "closed" or several > len(case["prompt"])):
        case["mode"] = "open"
    return case


def as_plain(result: dict[str, Any]) -> dict[str, Any]:
    """Both sides alike: what order rows have that start together is compared too, stints' is not."""
    actual = in_ticks(result) if isinstance(result["requests"]["batch"], np.ndarray) else dict(result)
    if "prompts" in actual:
        actual["iterations"] = actual["iterations"] | actual.pop("prompts")
    if isinstance(actual["stints"], dict):
        actual["stints"] = sorted(zip(*actual["stints"].values(), strict=True))
    for name in ("pool", "gaps"):
        if isinstance(actual.get(name), dict):
            table = actual[name]
            actual[name] = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        if name in actual:
            actual[name] = sorted(actual[name], key=lambda row: sorted(row.items()))
    actual.pop("timeline", None)
    return actual


def check(case: dict[str, Any]) -> dict[str, Any]:
    given_ = arguments(**case)
    expected = as_plain(sim_fleet_reference.run(**given_))
    result = differences(expected, as_plain(native(**given_)))
    assert not result, "\n".join(result)
    return expected


@drawn
@given(fleets())
def test_equals_the_reference(case: dict[str, Any]) -> None:
    check(case)


def test_a_short_request_leaves_before_earlier_ones() -> None:
    long, short = 40, 2
    case = {"prompt": [1] * 4, "output": [long, long, short, 2], "arrival": [0, 0, 50, 100]}
    costs_ = flat_costs(4, mid_slice=0, first_slice=5, last_slice=5)
    case |= {
        "mode": "open",
        "max_requests": 4,
        "router": "least-requests",
        "instances": [{}, {}],
        "costs": costs_,
    }
    assert check(case)["requests"]["batch"] == [0, 1, 0, 0]


def test_a_pool_hands_over_a_window_and_frees_the_memory_of_prompts_that_need_no_more() -> None:
    # It holds one prompt at a time; the last one's KV takes 3 + 20 + 2 x 7 on the link.
    case = {"prompt": [20] * 3, "output": [1, 1, 3], "max_requests": 4, "router": "round-robin"}
    case |= {"costs": flat_costs(4, mid_slice=1), "layers": 2, "instances": [{"pool": POOL}]}
    assert check(case)["requests"]["finished_s"] == [0, 0, 37 + 2]


def middle(gap: int) -> int:
    """Of the class that a gap in ticks is counted in: whole ticks, then eleven leading bits."""
    shift = max(0, gap.bit_length() - 11)
    return ((gap >> shift) << shift) + (1 << shift) // 2 if shift else gap


def gaps_of(result: dict[str, Any]) -> Counter[int]:
    """How many tokens came so long after the one before, from the rows."""
    table, last = result["iterations"], dict[tuple[int, int], int]()
    gaps: Counter[int] = Counter()
    rows = zip(*(table[name] for name in ("batch", "iteration", "start_s", "duration_s")), strict=True)
    for i, (batch, iteration, start, duration) in enumerate(rows):
        last[batch, iteration] = start + duration
        stayed = table["size"][i] - table["joined"][i]
        if stayed:
            gaps[middle(start + duration - last[batch, iteration - 1])] += stayed
    before: dict[int, int] = {}
    stints = sorted(zip(*result["stints"].values(), strict=True), key=lambda row: row[0])
    for request, batch, first, end in stints:
        if request in before:
            gaps[middle(last[batch, first] - before[request])] += 1
        before[request] = last[batch, end]
    gaps.update(middle(gap) for gap in result.get("gaps", {}).get("gap_s", []))
    return gaps


@drawn
@given(fleets())
def test_a_tally_is_what_the_rows_come_to(case: dict[str, Any]) -> None:
    given_ = arguments(**case)
    saved, tallied = (in_ticks(native(**given_ | {"keep_iterations": keep})) for keep in (True, False))
    assert tallied["requests"] == saved["requests"]
    assert not tallied["iterations"]["batch"]
    tally, rows = tallied["tally"], saved["iterations"]
    assert dict(zip(tally["gap_s"], tally["gap_tokens"], strict=True)) == gaps_of(saved)
    assert tally["iterations"] == len(rows["size"])
    assert tally["tokens"] == sum(rows["size"])
    assert tally["prompt_tokens"] == sum(saved.get("prompts", {}).get("prompt_tokens", []))
    parts = ("duration_s", "model_s", "attention_s", "network_s", "host_s")
    for name in parts:
        assert tally[name] == sum(t * n for t, n in zip(rows[name], rows["size"], strict=True))
    left = [duration - sum(work) for duration, *work in zip(*(rows[name] for name in parts), strict=True)]
    for name, sign in (("waiting_s", 1), ("overlapped_s", -1)):
        assert tally[name] == sum(max(0, sign * t) * n for t, n in zip(left, rows["size"], strict=True))
