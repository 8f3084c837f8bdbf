"""Steps, launches and landings: what a step tells, and requests that go while their batch is in flight.

Several batches without processes: a core that chooses made-up tokens when its batch lands.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lamina.serve.engine as module
from lamina import Engine, Sampling
from lamina.cluster import Layout
from lamina.kv import Arena, ArenaShape
from lamina.pipeline import BatchDelta, BatchRows, Choice, KvSlots, Schedule
from lamina.pipeline.batch_rows import Landed, Spent
from lamina.pipeline.kv_slots import Arrival
from lamina.pipeline.options import ModelFacts
from lamina.serve import EngineError, RequestError
from lamina.serve.requests import Step

SmallModel = Callable[..., transformers.PreTrainedModel]
PROMPT = [5, 17, 99, 3]
VOCABULARY = 120


class MadeUpCore:
    """Batches in flight beside each other: each token is the one before it and its position, in a way."""

    def __init__(self, batches: int, pool_tokens: int) -> None:
        self.facts = ModelFacts(VOCABULARY, 10_000, (), 1, 1, 1, 1, 0, "float32", 4, 0)
        self.batches, self.pools, self.pool_tokens = batches, 1, pool_tokens
        self.schedule = Schedule("fixed", batches, 2)
        self.kv_slots = KvSlots(Arena(ArenaShape(1, 1, 1, torch.float32), pool_tokens), batches)
        self.rosters = [BatchRows() for _ in range(batches)]
        self.flying = [0] * batches
        self.parts = 0  # of prompts, so far
        self.prefill = None
        self.fail: set[int] = set()  # prompts of so many tokens cannot be computed
        self.failed: list[dict[int, str]] = [{} for _ in range(batches)]
        self.closed = False

    def launch(self, batch: int, delta: BatchDelta, size: int) -> None:
        assert not self.flying[batch], "launched twice"
        self.flying[batch] = size or len(delta.parts)
        self.parts += len(delta.parts)
        arrivals = self.kv_slots.apply(batch, delta)
        self.rosters[batch].apply(delta)
        self.kv_slots.expect(delta)
        lost = [each.name for each in arrivals if each.tokens + 1 in self.fail]
        lost += [part.name for part in delta.parts if part.tokens + 1 in self.fail]
        self.failed[batch] = dict.fromkeys(lost, "bad luck")
        assert len(self.rosters[batch]) == size
        if size:
            self.kv_slots.extend(batch)

    def place_of_next(self, batch: int) -> int:
        return batch

    def refusal(self, tokens: int) -> None:
        """None is too long."""

    def land(self, batch: int) -> Landed:
        assert self.flying[batch], "landed and not launched"
        self.flying[batch] = 0
        rows = self.rosters[batch]
        tokens = (rows.columns.token * 7 + rows.columns.position) % VOCABULARY
        rows.advance(tokens)
        return Landed(Choice(tokens), Spent(waited_s=1e-9), time.monotonic(), self.failed[batch])

    def records(self) -> None:
        """None."""

    def check_integrity(self) -> None:
        self.kv_slots.arena.check_integrity()
        for batch, rows in enumerate(self.rosters):
            assert rows.columns.name.tolist() == self.kv_slots.names(batch).tolist()

    def close(self) -> None:
        self.closed = True


Made = Callable[..., tuple[Engine, MadeUpCore]]


def made_up(batches: int, pool_tokens: int, **options: Any) -> tuple[Engine, MadeUpCore]:
    core = MadeUpCore(batches, pool_tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ClusterCore", lambda *_, **__: core)
        return Engine("nothing", layout=Layout(oversubscribe=True), **options), core


def tokens_after(prompt: list[int], count: int) -> tuple[int, ...]:
    made, token = [], prompt[-1]
    for position in range(len(prompt) - 1, len(prompt) - 1 + count):
        token = (token * 7 + position) % VOCABULARY
        made.append(token)
    return tuple(made)


def nothing_is_left(engine: Engine, core: MadeUpCore) -> None:
    engine.check_integrity()
    assert core.kv_slots.arena.used == 0, "workers have been told that everybody has gone"
    assert not any(core.flying)
    assert not any(len(rows) for rows in core.rosters)


def test_a_step_lists_joined_and_left_requests() -> None:
    engine, core = made_up(1, 100)
    first, second = (engine.submit(PROMPT, Sampling(max_tokens=tokens)) for tokens in (2, 3))
    before = time.monotonic()
    steps = [engine.step() for _ in range(3)]
    assert [(step.batch, step.iteration, step.size) for step in steps] == [(0, 0, 2), (0, 1, 2), (0, 2, 1)]
    assert [step.kv_tokens for step in steps] == [8, 10, 6]
    assert [step.joined for step in steps] == [[first, second], [], []]
    assert [step.ended for step in steps] == [[], [first], [second]]
    assert [step.preempted for step in steps] == [[], [], []]
    times = [before, *(at for step in steps for at in (step.started_s, step.ended_s)), time.monotonic()]
    assert times == sorted(times)
    assert all(step.waited_s > 0 and step.host_s > 0 for step in steps)
    assert engine.step() == Step(), "nothing runs"
    nothing_is_left(engine, core)


def test_batches_have_their_turns_and_are_under_way_together() -> None:
    engine, core = made_up(3, 100)
    for number in range(5):
        engine.submit(PROMPT, Sampling(max_tokens=4 + number))
    steps = [engine.step()]
    assert core.flying == [0, 2, 1], "the first has landed, the others are under way"
    while not engine.idle:
        steps.append(engine.step())
    assert [(step.batch, step.iteration) for step in steps[:6]] == [
        *((b, 0) for b in range(3)),
        *((b, 1) for b in range(3)),
    ]
    for batch in range(3):
        assert [step.iteration for step in steps if step.batch == batch] == list(
            range(len([s for s in steps if s.batch == batch]))
        )
    assert all(step.started_s <= step.ended_s for step in steps)
    for number in range(5):
        assert engine.result(number).completions[0].tokens == tokens_after(PROMPT, 4 + number)
    nothing_is_left(engine, core)


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_cancelled_in_flight_a_request_keeps_its_memory_until_it_lands(batches: int) -> None:
    engine, core = made_up(batches, 100)
    numbers = [engine.submit(PROMPT, Sampling(max_tokens=9, n=2)) for _ in range(batches)]
    engine.step()
    lost = numbers[-1]
    used = core.kv_slots.arena.used
    engine.cancel(lost)
    done = engine.result(lost).completions
    made = 1 if batches == 1 else 0
    assert [(len(one.tokens), one.finish_reason) for one in done] == [(made, "cancelled")] * 2
    assert core.kv_slots.arena.used == (0 if batches == 1 else used), "alone, it is settled at once"
    engine.check_integrity()
    engine.run()
    for number in numbers[:-1]:
        assert [one.tokens for one in engine.result(number).completions] == [tokens_after(PROMPT, 9)] * 2
    nothing_is_left(engine, core)


def test_an_engine_whose_last_request_is_cancelled_in_flight_lands_it_and_is_idle() -> None:
    engine, core = made_up(2, 100)
    for _ in range(2):
        engine.submit(PROMPT, Sampling(max_tokens=9))
    engine.step()
    for number in (0, 1):
        engine.cancel(number)
    assert not engine.idle
    step = engine.step()
    assert (step.batch, step.size, step.ended) == (1, 1, [])
    assert engine.idle
    nothing_is_left(engine, core)


def test_a_prompt_that_fails_ends_its_request_alone() -> None:
    engine, core = made_up(2, 200)
    core.fail = {9}
    good, bad = engine.submit(PROMPT, Sampling(max_tokens=5)), engine.submit([1] * 9, Sampling(n=2))
    steps = [engine.step(), engine.step()]
    assert [step.ended for step in steps] == [[], [bad]]
    failed = engine.result(bad)
    assert failed.error == "its prompt could not be computed: bad luck"
    assert [(one.tokens, one.finish_reason) for one in failed.completions] == [((), "failed")] * 2
    engine.run()
    assert engine.result(good).completions[0].tokens == tokens_after(PROMPT, 5)
    nothing_is_left(engine, core)


def test_a_cancelled_requests_failed_prompt_is_ignored() -> None:
    engine, core = made_up(2, 200)
    core.fail = {9}
    good, bad = engine.submit(PROMPT, Sampling(max_tokens=5)), engine.submit([1] * 9)
    engine.step()
    engine.cancel(bad)
    engine.run()
    assert engine.result(bad).error is None
    assert len(engine.result(good).completions[0].tokens) == 5
    nothing_is_left(engine, core)


def test_preemptions_of_an_emptied_batch_are_reported() -> None:
    engine, core = made_up(2, 34, admission="grow")
    numbers = [engine.submit([1] * 10, Sampling(max_tokens=20)) for _ in range(2)]
    steps: list[Step] = []
    while not engine.idle:
        steps.append(engine.step())
        engine.check_integrity()
    reported = Counter(number for step in steps for number in step.preempted)
    results = {number: engine.result(number) for number in numbers}
    assert sum(reported.values()) > 0
    assert {number: reported[number] for number in numbers} == {
        number: result.preemptions for number, result in results.items()
    }
    assert {result.completions[0].tokens for result in results.values()} == {tokens_after([1] * 10, 20)}
    # One after the other, in the order of accounting.
    running: set[int] = set()
    for step in steps:
        running -= set(step.preempted)
        assert not running & set(step.joined)
        running |= set(step.joined)
        running -= set(step.ended)
    nothing_is_left(engine, core)


# A preempted request whose last sample begins and ends its prompt in the iteration that it joins.
ONE_PART = [(0, 11, 2), (3, 1, 1), (3, 1, 1), (3, 1, 1), (0, 1, 1), (0, 1, 1), (0, 6, 1), (0, 1, 1)]
ONE_PART += [(2, 1, 1), (0, 4, 2), (0, 1, 1), (0, 1, 3), (0, 1, 1), (0, 2, 2), (0, 1, 1), (0, 1, 3)]


@settings(deadline=None, max_examples=40)
@example(2, "grow", 3, ONE_PART)
@given(
    st.integers(1, 4),
    st.sampled_from(["reserve", "grow"]),
    st.sampled_from([1, 3, 512]),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(1, 3)), max_size=40),
)
def test_all_requests_get_their_tokens_under_random_load(
    batches: int, admission: str, prompt_tokens: int, wishes: list[tuple[int, int, int]]
) -> None:
    """Also where most prompts are computed in parts, and where iterations compute nothing else."""
    engine, core = made_up(batches, 60, admission=admission, max_sequences=12, prompt_tokens=prompt_tokens)
    requests: dict[int, tuple[list[int], int, int]] = {}
    cancelled: set[int] = set()
    steps: list[Step] = []
    for kind, tokens, width in wishes:
        if kind < 2:
            prompt = [tokens, *range(width)]
            try:
                requests[engine.submit(prompt, Sampling(max_tokens=tokens, n=width))] = (
                    prompt,
                    tokens,
                    width,
                )
            except RequestError:
                assert len(prompt) + width * tokens > 60
        elif kind == 2 and requests:
            number = sorted(requests)[tokens % len(requests)]
            engine.cancel(number)
            cancelled.add(number)
        steps.append(engine.step())
        engine.check_integrity()
    while not engine.idle:
        steps.append(engine.step())
    nothing_is_left(engine, core)
    reported = Counter(number for step in steps for number in step.preempted)
    for number, (prompt, tokens, width) in requests.items():
        result = engine.result(number)
        made = [one.tokens for one in result.completions]
        assert result.preemptions == reported[number] or number in cancelled
        whole = tokens_after(prompt, tokens)
        if number in cancelled:
            assert all(each == whole[: len(each)] for each in made)
        else:
            assert made == [whole] * width
            assert sum(number in step.ended for step in steps) == 1
    for batch in range(batches):
        own = [step for step in steps if step.size and step.batch == batch]
        assert [step.iteration for step in own] == list(range(len(own)))


def test_a_closed_engine_refuses_everything() -> None:
    engine, core = made_up(2, 100)
    with engine:
        engine.submit(PROMPT)
        engine.step()
    assert core.closed
    with pytest.raises(EngineError, match="engine-closed"):
        engine.step()


@pytest.mark.parametrize(("deed", "within"), [("step", "land"), ("cancel", "launch")])
def test_an_aborted_engine_refuses_everything(
    monkeypatch: pytest.MonkeyPatch, deed: str, within: str
) -> None:
    """Some workers may have been told and others not."""
    engine, core = made_up(1, 100)
    number = engine.submit(PROMPT, Sampling(max_tokens=9))
    engine.step()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(core, within, interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.cancel(number) if deed == "cancel" else engine.step()
    monkeypatch.undo()
    engine.submit(PROMPT)
    with pytest.raises(EngineError, match="engine-closed"):
        engine.step()


def test_slots_are_handed_out_on_the_hosts_time(
    small_model: SmallModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What scheduling and bookkeeping take is read from host_s: KV bookkeeping is no computing of prompts."""
    engine = Engine(small_model("llama-gqa"), kv_tokens=100, decode_only=True)
    apply = KvSlots.apply

    def slow(kv_slots: KvSlots, batch: int, delta: BatchDelta) -> list[Arrival]:
        time.sleep(0.05)
        return apply(kv_slots, batch, delta)

    monkeypatch.setattr(KvSlots, "apply", slow)
    engine.submit(PROMPT, Sampling(max_tokens=1))
    step = engine.step()
    assert step.host_s >= 0.05


def test_a_step_in_one_process_has_its_own_times(small_model: SmallModel) -> None:
    engine = Engine(small_model("llama-gqa"), kv_tokens=100)
    engine.submit(PROMPT, Sampling(max_tokens=3))
    steps = []
    while not engine.idle:
        began = time.monotonic()
        steps.append(engine.step())
        spent = steps[-1].prefill_s + steps[-1].model_s + steps[-1].attention_s + steps[-1].sampling_s
        assert began <= steps[-1].started_s <= steps[-1].ended_s <= time.monotonic()
        assert 0 < spent + steps[-1].host_s <= time.monotonic() - began
        assert steps[-1].waited_s == 0
    first = steps[0]
    assert min(first.prefill_s, first.model_s, first.attention_s, first.sampling_s, first.host_s) > 0
    assert [step.iteration for step in steps] == [0, 1, 2]
    assert engine.records() is None
    assert engine.core.arena.used == 0, "settled: nobody runs"
    assert np.isfinite([step.host_s for step in steps]).all()
