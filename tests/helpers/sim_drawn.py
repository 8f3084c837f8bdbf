"""Random calls of the simulator: deployments and workloads in which much happens, and their differences."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

TABLES = ("first_slice", "mid_slice", "last_slice", "q_transfer", "kv_transfer", "out_transfer")
TABLES += ("migration", "attention_rows", "attention_fixed")

# `make test` draws fewer. A soak is the same tests with LAMINABENCH_SIM_EXAMPLES=20000.
EXAMPLES = int(os.environ.get("LAMINABENCH_SIM_EXAMPLES", "80"))


def drawn(test: Callable[..., None]) -> Callable[..., None]:
    """Draw values above `given`."""
    unhealthy = [HealthCheck.too_slow, HealthCheck.data_too_large]
    chosen = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=unhealthy)
    return pytest.mark.drawn(chosen(test))


rates = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1 / 3, 1.0, 2.7])  # halves make round() decide


@st.composite
def costs(draw: st.DrawFn, most: int) -> dict[str, Any]:
    sizes = np.arange(most + 1)

    def table(largest: int) -> np.ndarray:
        # Not monotonic: nothing in the simulator may count on larger batches taking longer.
        base, slope, wiggle = draw(st.tuples(st.integers(0, largest), st.integers(0, 3), st.integers(0, 5)))
        return (base + slope * sizes + sizes * sizes % 7 * wiggle).astype(np.int64)

    chosen: dict[str, Any] = {name: table(30) for name in TABLES}
    latency = draw(st.integers(0, 5))
    for name in ("q_transfer", "out_transfer"):  # what streams is the rest, so there is one
        chosen[name] += latency
    chosen["q_lead"] = np.minimum(table(20), chosen["mid_slice"])  # q cannot leave before its slice begins
    if draw(st.integers(0, 2)) == 0:
        chosen["measured"] = draw(measured())
    if draw(st.booleans()):
        per_token = np.where(sizes % 2 == 0, draw(rates), draw(rates)).astype(np.float64)
        window, per_pair = draw(st.integers(1, 40)), draw(rates)
        chosen["windowed"] = {"window": window, "per_token": per_token, "per_pair": per_pair}
    return (
        chosen
        | {
            "attention_per_token": np.where(sizes % 2 == 0, draw(rates), draw(rates)).astype(np.float64),
            "combine": draw(st.integers(0, 5)),
            "stream_chunks": draw(st.integers(1, 4)),
            "stream_by_request": draw(st.booleans()),
            "chunk_overhead": draw(st.integers(0, 5)),
            "host_async": draw(st.booleans()),
            "transfer_latency": latency,
            "device_tokens": draw(st.one_of(st.just(2**62), st.integers(0, 200))),
            "paged_per_token": draw(rates),
            "host_fixed": draw(st.integers(0, 50)),
            "host_per_request": draw(rates),
            "gap_per_request": draw(rates),
            "recompute_per_token": draw(rates),
        }
        | (draw(front_ends()) if draw(st.booleans()) else {})
    )


@st.composite
def front_ends(draw: st.DrawFn) -> dict[str, int]:
    """Draw what a server takes before and after its iterations, and launches of those outside graphs."""
    some = st.one_of(st.just(0), st.integers(0, 30), st.integers(0, 500))
    names = ("request_in", "request_serial", "out", "launch")
    return {name: draw(some) for name in names} | {"graph_rows": draw(st.integers(0, 30))}


@st.composite
def measured(draw: st.DrawFn) -> dict[str, Any]:
    """Draw measured attention with few points, so that much is between and beyond them."""

    def grid(values: st.SearchStrategy[float], *points: st.SearchStrategy[float]) -> dict[str, Any]:
        axes = [sorted(draw(st.sets(of, min_size=1, max_size=3))) for of in points]
        count = math.prod(map(len, axes))
        return {"axes": axes, "values": draw(st.lists(values, min_size=count, max_size=count))}

    times, shares = st.integers(1, 200).map(float), st.sampled_from([0.0, 0.1, 0.5, 1.0])
    some, more = st.integers(1, 70).map(float), st.integers(0, 70).map(float)
    names = ("fixed", "per_request", "per_kv_token", "per_mean_token", "prompt_fixed", "per_row", "per_pair")
    return {
        "decode": grid(times, some, some),
        "prompt": grid(times, some, more),
        "mixed": grid(times, some, more, some, some),
        "skew": grid(shares, some, shares),
        "mixed_skew": grid(shares, some, shares, some),
        "beyond": {name: draw(st.sampled_from([0.5, 1.0, 3.0])) for name in names},
    }


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    rows = draw(st.integers(1, 25))
    prompt = draw(st.lists(st.integers(1, 60), min_size=rows, max_size=rows))
    output = draw(st.lists(st.integers(1, 20), min_size=rows, max_size=rows))
    gap = st.one_of(st.just(0), st.integers(0, 30), st.integers(0, 3000))
    gaps = draw(st.lists(gap, min_size=rows, max_size=rows))
    return {
        "arrival": np.cumsum(gaps),
        "prompt": prompt,
        "output": output,
        "mode": draw(st.sampled_from(["saturate", "open", "closed"])),
        "concurrency": draw(st.integers(1, 12)),
    } | draw(prefixes(prompt))


@st.composite
def prefixes(draw: st.DrawFn, prompt: list[int]) -> dict[str, Any]:
    """Draw prefix blocks as in traces: an id stands for everything up to its block's end."""
    size = draw(st.sampled_from([0, 0, 4, 16]))
    if size == 0:
        return {}
    offsets, ids, known = [0], list[int](), dict[tuple[Any, ...], int]()
    for tokens in prompt:
        shared = draw(st.integers(0, 15))  # so many blocks are everyone's, the others of a few families
        family = draw(st.integers(0, 3))
        partly = draw(st.booleans())  # the last block of the prompt counts although it is not full
        lengths = [min(size, tokens - at) for at in range(0, tokens, size)]
        for place, length in enumerate(lengths):
            if length == size or partly:
                key = (place, length, -1 if place < shared else family)
                ids.append(known.setdefault(key, len(known)))
        offsets.append(len(ids))
    return {
        "prefix_offsets": np.array(offsets, np.int64),
        "prefix_ids": np.array(ids, np.int64),
        "prefix_block_tokens": size,
    }


PRIORITIES: dict[str, Callable[[int], int] | None] = {
    "none": None,
    "last": lambda row: -row,
    "odd first": lambda row: (row + 1) % 2,
    "mixed": lambda row: row * 7 % 5 - 2,
}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    most = draw(st.integers(1, 25))
    record_from = draw(st.integers(0, 2000))
    pipelining = draw(st.sampled_from(["serial", "rotational", "fixed", "pingpong"]))
    return draw(workloads()) | {
        "batches": draw(st.integers(1, 4)),
        "pipelining": pipelining,
        "own_attention": pipelining == "fixed" and draw(st.booleans()),
        "layers": draw(st.integers(1, 6)),
        "pools": draw(st.integers(1, 3)),
        # From too little for some to enough for all.
        "tokens_per_pool": draw(st.one_of(st.integers(30, 150), st.integers(30, 600))),
        "block_tokens": draw(st.sampled_from([1, 4, 16])),
        "request_tokens": draw(st.one_of(st.just(0), st.integers(1, 30))),
        "admission": draw(st.sampled_from(["reserve", "grow"])),
        "max_requests": most,
        "min_batch": draw(st.integers(1, 6)),
        "costs": draw(costs(most)),
        "priority": PRIORITIES[draw(st.sampled_from(sorted(PRIORITIES)))],
        "record_from": record_from,
        "record_to": draw(st.sampled_from([0, record_from + 500, 2**40])),
        "check": draw(st.booleans()),
    }


@st.composite
def prompted_cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw cases that also compute prompts, with no more requests in a batch than it has budget for."""
    case = draw(cases())
    budget = draw(st.integers(1, 80))
    case["max_requests"] = draw(st.integers(1, min(25, budget * case["batches"])))
    prompts = {name: draw(rates) for name in ("per_row", "per_pair", "per_token")}
    head = draw(st.integers(0, 9)) + np.arange(budget + 26) * draw(st.integers(0, 3))
    case["costs"] = draw(costs(max(case["max_requests"], budget)))
    case["costs"]["prompts"] = {**prompts, "fixed": draw(st.integers(0, 9)), "head": head}
    return case | {"prompt_budget": budget}


def differences(expected: dict[str, Any], actual: dict[str, Any], path: str = "") -> list[str]:
    """Return every column that is not equal, by name."""
    assert expected.keys() == actual.keys()
    result = []
    for name, value in expected.items():
        if isinstance(value, dict):
            result += differences(value, actual[name], f"{path}{name}.")
        elif value != actual[name]:
            result.append(f"{path}{name}: reference {value}, simulator {actual[name]}")
    return result
