"""The C++ simulator gives what the reference gives, in every column, to the tick."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import sim_prompt_reference
import sim_reference
from hypothesis import event, given
from sim_cases import arguments, in_ticks, native
from sim_drawn import TABLES, cases, differences, drawn, prompted_cases


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


@drawn
@given(case=cases())
def test_equals_the_reference(case: dict[str, Any]) -> None:
    given_ = arguments(**case)
    expected = in_ticks(sim_reference.run(**given_))
    for name, times in what_happened(expected).items():
        event(f"{name}: {'some' if times else 'none'}")
    result = differences(expected, in_ticks(native(**given_)))
    assert not result, "\n".join(result)


@drawn
@given(case=prompted_cases())
def test_equals_the_reference_with_prompts(case: dict[str, Any]) -> None:
    given_ = arguments(**case)
    expected = in_ticks(sim_prompt_reference.run(**given_))
    for name, times in what_happened(expected).items():
        event(f"{name}: {'some' if times else 'none'}")
    result = differences(expected, in_ticks(native(**given_)))
    assert not result, "\n".join(result)


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
        result = differences(expected, in_ticks(native(**given_)))
        assert not result, "\n".join([f"seed {seed}", *result])
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
    ("batches", "pipelining"),
    [(1, "rotational"), (2, "rotational"), (2, "serial"), (2, "fixed"), (3, "pingpong")],
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


@pytest.mark.parametrize(("prompt", "layer"), [(3, 3 + 2 + 3), (4, 3 + 2 + 4), (9, 3 + 5 + 4)])
def test_a_window_is_all_that_some_layers_read(prompt: int, layer: int) -> None:
    # Of two requests all KV tokens are read for 0.25 each, and for 0.5 no more than 8 of them together.
    costs = {
        "attention_rows": 3,
        "attention_per_token": 0.25,
        "windowed": {"window": 4, "per_token": np.full(65, 0.5), "per_pair": 0.0},
    }
    result = as_the_reference(**arguments(prompt=[prompt] * 2, output=[1] * 2, layers=3, costs=costs))
    assert result["iterations"]["attention_s"] == [3 * layer]


@pytest.mark.parametrize("admission", ["reserve", "grow"])
@pytest.mark.parametrize(("alongside", "at_once"), [(0, 3), (1, 2), (4, 2), (5, 1), (13, 0)])
def test_memory_besides_tokens_is_charged(admission: str, alongside: int, at_once: int) -> None:
    # Of 16 tokens each request is charged 4 for its 2 + 2, and whole blocks for what it has beside.
    memory = {"admission": admission, "tokens_per_pool": 17, "block_tokens": 4, "request_tokens": alongside}
    given_ = arguments(prompt=[2] * 3, output=[2] * 3, max_requests=3, check=True, **memory)
    result = as_the_reference(**given_)
    assert max(result["iterations"]["size"], default=0) == at_once
    assert result["peak_kv_tokens"] == at_once * (4 + -(-alongside // 4) * 4)
    assert result["iterations"]["kv_tokens"][:1] == [2 * at_once][: at_once > 0]


def test_replicas_that_do_attention_themselves_do_not_wait_for_each_other() -> None:
    costs = {"mid_slice": 2, "attention_fixed": 5, "out_transfer": 1, "q_lead": 1}
    fixed = {"batches": 3, "pipelining": "fixed", "layers": 3, "costs": costs}
    several = as_the_reference(**arguments(prompt=[1] * 3, output=[4] * 3, own_attention=True, **fixed))
    alone = as_the_reference(**arguments(prompt=[1], output=[4], own_attention=True, **fixed))
    assert several["end_s"] == alone["end_s"] == 4 * (2 * 2 + 3 * (5 + 1))
    assert several["replica_busy_s"] == [4 * 2 * 2] * 3
    assert several["attention_busy_s"] == 3 * 4 * 3 * 5
    with pytest.raises(ValueError, match="only with fixed"):
        native(**arguments(prompt=[1], output=[1], own_attention=True))


def test_growing_admission_keeps_a_hundredth_free() -> None:
    # The first takes 991 of 1000 tokens; 9 are left, and the second's 1 + 1 would leave 7, below 10.
    memory = {"admission": "grow", "tokens_per_pool": 1000}
    given_ = arguments(prompt=[990, 1], output=[2, 2], costs={"mid_slice": 1}, **memory)
    requests = as_the_reference(**given_)["requests"]
    assert requests["admitted_s"][1] == requests["finished_s"][0]


def test_skipped_iterations_take_the_blocks_that_they_begin() -> None:
    memory = {"admission": "grow", "tokens_per_pool": 400, "block_tokens": 4}
    result = as_the_reference(**arguments(prompt=[6], output=[13], **memory))
    assert result["peak_kv_tokens"] == 20


def test_memory_of_requests_that_end_together_is_freed_in_batch_order() -> None:
    # The first two end at one boundary. What they leave in line is 4 free blocks, the first one's two and its
    # prefix block, then the second's; the third takes 7 of these, and the fourth finds the second's prefix.
    given_ = arguments(
        prompt=[4, 4, 5, 6],
        output=[2, 2, 2, 2],
        prefix_offsets=np.array([0, 1, 2, 2, 3]),
        prefix_ids=np.array([7, 8, 8]),
        tokens_per_pool=16,
        max_requests=2,
        prompt_budget=50,
        costs={
            "prompts": {
                "per_row": 0.0,
                "per_pair": 0.0,
                "per_token": 0.0,
                "fixed": 0,
                "head": np.zeros(101, int),
            }
        },
    )
    result = in_ticks(native(**given_))
    assert not differences(in_ticks(sim_prompt_reference.run(**given_)), result)
    assert result["prompts"]["prompt_tokens"] == [8, 0, 7, 0]


def test_a_closed_request_is_sent_when_its_client_has_an_answer_and_waits_for_the_front_end() -> None:
    # An iteration takes 100. The first two are there at 4 + 5 and 8 + 5: the first iteration has one of them.
    given_ = arguments(
        prompt=[1] * 3,
        output=[1, 2, 1],
        mode="closed",
        concurrency=2,
        costs={"last_slice": 100, "request_serial": 4, "request_in": 5, "out": 7},
    )
    requests = as_the_reference(**given_)["requests"]
    assert requests["arrival_s"] == [0, 0, 9 + 100 + 7]
    assert requests["first_token_s"] == [9 + 100 + 7, 209 + 7, 309 + 7]
    assert requests["finished_s"] == [116, 316, 316]


PROMPTS = {"per_row": 0.0, "per_pair": 0.0, "per_token": 0.0, "fixed": 0, "head": np.zeros(101, int)}


def test_part_of_a_prefix_block_is_lost_with_the_prompt_that_is_sent_back() -> None:
    # The third is sent back within its prefix block, which it finds complete when it is computed again.
    given_ = arguments(
        arrival=np.array([3, 4, 5]),
        prompt=[10, 11, 13],
        output=[6, 2, 8],
        mode="open",
        prefix_offsets=np.arange(4),
        prefix_ids=np.array([0, 10, 10]),
        prefix_block_tokens=7,
        batches=2,
        tokens_per_pool=29,
        admission="grow",
        prompt_budget=5,
        costs={"last_slice": 1, "prompts": PROMPTS},
    )
    tables = in_ticks(native(**given_))
    assert not differences(in_ticks(sim_prompt_reference.run(**given_)), tables)
    assert tables["requests"]["first_token_s"] == [5, 10, 14]


def with_prompts(**costs: Any) -> dict[str, Any]:
    """Two prompts of 10, one after the other, in iterations that take 100."""
    given_ = arguments(
        prompt=[10, 10, 10],
        output=[2, 4, 1],
        mode="closed",
        concurrency=2,
        prompt_budget=50,
        tokens_per_pool=1000,
        costs={"last_slice": 100, "prompts": PROMPTS, **costs},
    )
    tables = in_ticks(native(**given_))
    assert not differences(in_ticks(sim_prompt_reference.run(**given_)), tables)
    return tables


def test_an_asynchronous_host_lets_a_closed_request_wait_for_a_whole_iteration() -> None:
    waits, at_once = (with_prompts(host_async=lags)["requests"] for lags in (True, False))
    assert waits["arrival_s"] == at_once["arrival_s"] == [0, 0, 200]
    assert at_once["first_token_s"][2] == 300
    assert waits["first_token_s"][2] == 400


@pytest.mark.parametrize(
    ("host_async", "graph_rows", "ends"),
    # Prompts of 20 rows, then one of 11 beside a decoding request: in the third iteration or, of an
    # asynchronous host, in the fourth, whose launches begin with the third.
    [
        (False, 20, [100, 200, 300, 400]),
        (False, 11, [350, 450, 550, 650]),
        (False, 0, [350, 450, 800, 900]),
        (True, 0, [350, 450, 550, 800]),
    ],
)
def test_launches_hold_up_iterations_with_prompts_that_are_in_no_graph(
    host_async: bool, graph_rows: int, ends: list[int]
) -> None:
    tables = with_prompts(host_async=host_async, graph_rows=graph_rows, launch=350)
    iterations = tables["iterations"]
    results = [a + b for a, b in zip(iterations["start_s"], iterations["duration_s"], strict=True)]
    assert results[:4] == ends
    assert iterations["host_s"][0] == (250 if ends[0] == 350 else 0)
