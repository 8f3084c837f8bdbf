"""The runner's loop and its lines: which request is submitted when, and which events are written."""

from __future__ import annotations

import io
import json
from array import array
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from decode_replay.offering import Offering, StuckError
from decode_replay.protocol import EventWriter, Order, variables_of_interest
from decode_replay.watch import Step

STEP_S = 0.1


@dataclass
class Engine:
    """Decodes at most two at once, a token a step; its clock goes on only in steps and sleeps."""

    output: list[int]
    now_s: float = 100.0
    most: int = 2
    works: bool = True
    busy: bool = False
    prefills: bool = False  # each request's prompt is begun with half a step before its first token
    submitted: list[tuple[int, float]] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    _waiting: list[int] = field(default_factory=list)
    _left: dict[int, int] = field(default_factory=dict)

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds + 1e-9

    def why_not(self, row: int) -> str | None:
        return "it never fits" if self.output[row] > 100 else None

    def submit(self, row: int) -> None:
        self.submitted.append((row, round(self.now_s - 100.0, 6)))
        self._waiting.append(row)

    def step(self) -> Step:
        if not self.works:
            return Step(0, 0, [], [], [], 0)
        joined = []
        while self._waiting and len(self._left) < self.most:
            joined.append(self._waiting.pop(0))
            self._left[joined[-1]] = self.output[joined[-1]]
        self.now_s += STEP_S
        self._left = {row: left - 1 for row, left in self._left.items()}
        size, ended = len(self._left), [row for row, left in self._left.items() if not left]
        begun = [(row, self.now_s - STEP_S / 2) for row in joined] if self.prefills else []
        self._left = {row: left for row, left in self._left.items() if left}
        return Step(size, 0, joined, [], ended, 0, begun)


def order(mode: str, output: list[int], arrival_s: list[float] | None = None, concurrency: int = 0) -> Order:
    return Order(
        model="", load_format="dummy", dtype="auto", tensor_parallel=1, max_num_seqs=2,
        max_model_len=100, block_size=None, kv_bytes=None, gpu_memory_utilization=None,
        enforce_eager=False, cores=[0], mode=mode, concurrency=concurrency,
        prompt_tokens=[1] * len(output), output_tokens=output,
        arrival_s=arrival_s or [], prompts=None, max_batched_tokens=None, prefix_caching=None,
    )  # fmt: skip


def offered(engine: Any, requested: Order) -> list[Any]:
    """Run it; every event that was told, in order."""
    stream = io.StringIO()
    Offering(engine, requested, EventWriter(stream, engine.now), engine.now, engine.sleep).run()
    return [event for line in stream.getvalue().splitlines() for event in json.loads(line)["events"]]


def test_all_are_there_at_the_beginning_of_a_saturated_replay_and_some_inside() -> None:
    engine = Engine([3, 1, 200, 1, 1, 1, 1])
    events = offered(engine, order("saturate", engine.output))
    assert [event for event in events if event[0] == "a"] == [
        ["a", row, 0.0, "it never fits" if row == 2 else None] for row in range(7)
    ]
    assert [row for row, _ in engine.submitted] == [0, 1, 3, 4, 5, 6]
    assert [row for row, at_s in engine.submitted if at_s == 0.0] == [0, 1]
    steps = [event for event in events if event[0] == "s"]
    assert [step[5] for step in steps] == [[0, 1], [3], [4], [5, 6]]
    assert sorted(row for step in steps for row in step[7]) == [0, 1, 3, 4, 5, 6]
    assert steps[-1][2] == pytest.approx(0.4)


def test_an_open_replay_waits_for_arrivals_and_shows_signs_of_life_meanwhile() -> None:
    engine: Any = Engine([1, 1, 300])
    requested = order("open", engine.output, [0.05, 1.0, 1.0])
    stream = io.StringIO()
    Offering(engine, requested, EventWriter(stream, engine.now), engine.now, engine.sleep).run()
    lines = [json.loads(line)["events"] for line in stream.getvalue().splitlines()]
    assert [] in lines
    assert max(engine.slept) <= 0.25
    arrived = [event for line in lines for event in line if event[0] == "a"]
    assert arrived == [["a", 0, 0.05, None], ["a", 1, 1.0, None], ["a", 2, 1.0, "it never fits"]]
    assert all(at_s >= requested.arrival_s[row] - 1e-6 for row, at_s in engine.submitted)


def test_a_closed_replay_keeps_so_many_inside() -> None:
    engine = Engine([2, 1, 1, 1], most=9)
    offered(engine, order("closed", engine.output, concurrency=2))
    assert engine.submitted == [(0, 0.0), (1, 0.0), (2, 0.1), (3, 0.2)]


def test_an_engine_that_does_nothing_is_told_of() -> None:
    engine = Engine([1], works=False)
    with pytest.raises(StuckError, match=r"^1 requests wait, and 1000 steps did nothing for them"):
        offered(engine, order("saturate", engine.output))


def test_steps_that_make_no_token_are_not_for_ever_where_something_is_computed() -> None:
    engine = Engine([1], works=False, busy=True)
    steps = 0

    def step() -> Step:
        nonlocal steps
        steps += 1
        engine.works = steps > 2000
        return Engine.step(engine)

    engine.step = step  # type: ignore[method-assign]
    offered(engine, order("saturate", engine.output))
    assert steps == 2001


def test_when_a_prompt_was_begun_with_is_told_by_the_clock_of_the_replay() -> None:
    engine = Engine([2], prefills=True)
    first = next(event for event in offered(engine, order("saturate", engine.output)) if event[0] == "s")
    assert first[9] == [[0, pytest.approx(0.05)]]


def test_prompts_are_read_from_their_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_bytes(array("I", [5, 6, 70_000]).tobytes())
    request = replace(order("saturate", [1, 1]), prompt_tokens=[1, 2], prompts=str(file))
    assert [prompt.tolist() for prompt in request.read_prompts()] == [[5], [6, 70_000]]


def test_another_replay_is_the_same_or_of_other_requests() -> None:
    first = order("saturate", [1, 1])
    assert first.again(b"") == first
    other = first.again(b'{"prompt_tokens": [7], "output_tokens": [3], "prompts": null}')
    assert other == replace(first, prompt_tokens=[7], output_tokens=[3])
    with pytest.raises(ValueError, match="another replay has output_tokens, prompt_tokens, prompts"):
        first.again(b'{"model": "there"}')


def test_what_is_no_order_is_refused() -> None:
    with pytest.raises(ValueError, match="an order has model, load_format"):
        Order.parse('{"model": "here"}')


def test_variables_that_vllm_goes_by_are_told_and_no_secret() -> None:
    variables = {
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "VLLM_MAX_TOKENS": "9",
        "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": "https://somebody:hush@models.example/x",
        "HF_TOKEN": "hush",
        "VLLM_API_KEY": "hush",
        "HOME": "/home/somebody",
    }
    assert variables_of_interest(variables) == {
        "HF_ENDPOINT": "https://models.example/x",
        "HF_HUB_OFFLINE": "1",
        "HF_TOKEN": "(secret)",
        "VLLM_API_KEY": "(secret)",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "VLLM_MAX_TOKENS": "9",
    }
