"""The C++ simulator gives what the reference gives, in every column, to the tick."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sim_prompt_reference
import sim_reference
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sim_cases import arguments, in_ticks, native

TABLES = ("first_slice", "mid_slice", "last_slice", "q_transfer", "kv_transfer", "out_transfer")
TABLES += ("migration", "attention_fixed")

# A soak is the same tests with LAMINABENCH_SIM_EXAMPLES=20000.
EXAMPLES = int(os.environ.get("LAMINABENCH_SIM_EXAMPLES", "80"))
quick = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

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
    return chosen | {
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
        "recompute_per_token": draw(rates),
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
    """Prefix blocks as traces have them: an id stands for all up to its block's end."""
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
    return draw(workloads()) | {
        "batches": draw(st.integers(1, 4)),
        "pipelining": draw(st.sampled_from(["serial", "rotational", "fixed"])),
        "layers": draw(st.integers(1, 6)),
        "pools": draw(st.integers(1, 3)),
        # From too little for some to enough for all.
        "tokens_per_pool": draw(st.one_of(st.integers(30, 150), st.integers(30, 600))),
        "block_tokens": draw(st.sampled_from([1, 4, 16])),
        "admission": draw(st.sampled_from(["reserve", "grow"])),
        "max_requests": most,
        "costs": draw(costs(most)),
        "priority": PRIORITIES[draw(st.sampled_from(sorted(PRIORITIES)))],
        "record_from": record_from,
        "record_to": draw(st.sampled_from([0, record_from + 500, 2**40])),
        "check": draw(st.booleans()),
    }


@st.composite
def prompted_cases(draw: st.DrawFn) -> dict[str, Any]:
    """Cases in which prompts are computed too; no more requests in a batch than it has budget for."""
    case = draw(cases())
    budget = draw(st.integers(1, 80))
    case["max_requests"] = draw(st.integers(1, min(25, budget * case["batches"])))
    prompts = {name: draw(rates) for name in ("per_row", "per_pair", "per_token")}
    head = draw(st.integers(0, 9)) + np.arange(budget + 26) * draw(st.integers(0, 3))
    case["costs"] = draw(costs(max(case["max_requests"], budget)))
    case["costs"]["prompts"] = {**prompts, "fixed": draw(st.integers(0, 9)), "head": head}
    return case | {"prompt_budget": budget}


def what_happened(result: dict[str, Any]) -> Counter[str]:
    """How often the scheduler had to do each of the harder things, to see that the cases make it."""
    requests, iterations = result["requests"], result["iterations"]
    times = zip(requests["arrival_s"], requests["admitted_s"], strict=True)
    return Counter(
        rejected=sum(at < 0 for at in requests["admitted_s"]),
        queued=sum(came < began for came, began in times),
        preempted=sum(requests["preemptions"]),
        preempted_twice=sum(often > 1 for often in requests["preemptions"]),
        moved=len(set(zip(result["stints"]["request"], result["stints"]["batch"], strict=True)))
        - len(set(result["stints"]["request"])),
        batches=len(set(iterations["batch"])) - 1 if iterations["batch"] else 0,
        recorded=len(result["timeline"]["batch"]),
    )


def as_the_reference(**given_: Any) -> dict[str, Any]:
    """The simulator's tables, which are the reference's."""
    tables = in_ticks(native(**given_))
    assert not differences(in_ticks(sim_reference.run(**given_)), tables)
    return tables


def differences(expected: dict[str, Any], actual: dict[str, Any], path: str = "") -> list[str]:
    """Every column that is not equal, by name."""
    assert expected.keys() == actual.keys()
    found = []
    for name, value in expected.items():
        if isinstance(value, dict):
            found += differences(value, actual[name], f"{path}{name}.")
        elif value != actual[name]:
            found.append(f"{path}{name}: reference {value}, simulator {actual[name]}")
    return found


@quick
@given(case=cases())
def test_equals_the_reference(case: dict[str, Any]) -> None:
    given_ = arguments(**case)
    expected = in_ticks(sim_reference.run(**given_))
    for name, times in what_happened(expected).items():
        event(f"{name}: {'some' if times else 'none'}")
    found = differences(expected, in_ticks(native(**given_)))
    assert not found, "\n".join(found)


@quick
@given(case=prompted_cases())
def test_equals_the_reference_with_prompts(case: dict[str, Any]) -> None:
    given_ = arguments(**case)
    expected = in_ticks(sim_prompt_reference.run(**given_))
    for name, times in what_happened(expected).items():
        event(f"{name}: {'some' if times else 'none'}")
    found = differences(expected, in_ticks(native(**given_)))
    assert not found, "\n".join(found)


def fixed_sample(seed: int) -> dict[str, Any]:
    """A case in which memory is short for the requests that come."""
    rng = np.random.default_rng(seed)
    rows, most = 25, 12
    tables = {name: rng.integers(0, 30) + rng.integers(0, 4) * np.arange(most + 1) for name in TABLES}
    case: dict[str, Any] = arguments(
        arrival=np.cumsum(rng.integers(0, 200, rows)),
        prompt=rng.integers(1, 60, rows),
        output=rng.integers(1, 21, rows),
        mode=("saturate", "open", "closed")[seed % 3],
        concurrency=8,
        batches=1 + seed % 4,
        pipelining="rotational" if seed % 5 else "fixed",
        layers=1 + seed % 6,
        pools=1 + seed % 2,
        tokens_per_pool=int(rng.integers(60, 120)),
        block_tokens=(1, 4, 16)[seed // 3 % 3],
        admission="grow" if seed % 4 else "reserve",
        max_requests=most,
        costs=tables
        | {
            "attention_per_token": 0.3,
            "host_fixed": 7,
            "host_per_request": 0.5,
            "recompute_per_token": 0.7,
            "device_tokens": 90,
            "paged_per_token": 0.4,
            "stream_chunks": 1 + seed % 3,
            "q_lead": np.minimum(3, tables["mid_slice"]),
        },
        record_to=2**40,
        check=True,
    )
    return case


def test_a_fixed_sample_has_all_the_hard_things_in_it() -> None:
    happened: Counter[str] = Counter()
    for seed in range(24):
        given_ = fixed_sample(seed)
        expected = in_ticks(sim_reference.run(**given_))
        found = differences(expected, in_ticks(native(**given_)))
        assert not found, "\n".join([f"seed {seed}", *found])
        happened.update({name: 1 for name, times in what_happened(expected).items() if times > 0})
    assert happened["rejected"] >= 3
    assert happened["queued"] >= 20
    assert happened["preempted"] >= 10
    assert happened["preempted_twice"] >= 5
    assert happened["moved"] >= 3
    assert happened["batches"] >= 15
    assert happened["recorded"] == 24


def test_a_request_admitted_to_a_batch_whose_turn_has_passed_runs() -> None:
    # Row 2 fits when row 1 has left, at the boundary of batch 1, and goes to batch 0; no one else is left.
    given_ = arguments(prompt=[1, 1, 1], output=[2, 9, 20], batches=2, tokens_per_pool=30, check=True)
    result = as_the_reference(**given_)
    assert min(result["requests"]["finished_s"]) >= 0


@pytest.mark.parametrize(
    ("batches", "pipelining"), [(1, "rotational"), (2, "rotational"), (2, "serial"), (2, "fixed")]
)
def test_only_rotation_over_replicas_sends_contexts(batches: int, pipelining: str) -> None:
    costs = {"mid_slice": 1, "migration": 9}
    given_ = arguments(prompt=[1], output=[1], layers=3, batches=batches, pipelining=pipelining, costs=costs)
    result = as_the_reference(**given_)
    assert result["end_s"] == 2  # its two slices in the middle, as if nothing had to travel


@pytest.mark.parametrize("admission", ["reserve", "grow"])
def test_what_can_never_fit_stands_in_no_ones_way(admission: str) -> None:
    # Five tokens of prompt are blocks of 4 and 1, the three of output another: 12 tokens of a pool of 8,
    # although prompt and output, rounded up together, are just 8.
    given_ = arguments(
        prompt=[5, 1],
        output=[3, 1],
        prefix_offsets=np.array([0, 2, 2]),
        prefix_ids=np.array([1, 2]),
        prefix_block_tokens=4,
        block_tokens=4,
        tokens_per_pool=8,
        admission=admission,
    )
    result = as_the_reference(**given_)
    assert [at >= 0 for at in result["requests"]["finished_s"]] == [False, True]


def test_growing_admission_keeps_a_hundredth_free() -> None:
    # The first takes 991 of 1000 tokens; 9 are left, and the second's 1 + 1 would leave 7, below 10.
    memory = {"admission": "grow", "tokens_per_pool": 1000}
    given_ = arguments(prompt=[990, 1], output=[2, 2], costs={"mid_slice": 1}, **memory)
    requests = as_the_reference(**given_)["requests"]
    assert requests["admitted_s"][1] == requests["finished_s"][0]
