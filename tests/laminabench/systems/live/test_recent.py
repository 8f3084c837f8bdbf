"""What a live replay says of its last seconds is what its steps were."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laminabench.runs.status import DONE
from laminabench.sim.simulate import Offered
from laminabench.systems.live.endpoint.progress import MOST_CHUNKS, NO_PROGRESS, ProgressSampler, report
from laminabench.systems.live.endpoint.records import Records
from laminabench.systems.live.lamina.faults import Injection
from laminabench.systems.live.recent import EVERY_S, Recent, expected_of
from laminabench.util.live_progress import FaultEvent, Gaps, Happening, Moment

# As test_live_loop has it.
ITERATION_S = 0.007


def moments(reported: list[Happening]) -> list[Moment]:
    return [each for each in reported if isinstance(each, Moment)]


def test_gaps_are_between_iterations_of_a_batch_and_count_as_many_as_were_there() -> None:
    messages: list[Happening] = []
    recent = Recent(messages.append, 9)
    recent.iteration(0, 1.0, 5, 5)
    recent.iteration(1, 1.5, 2, 2)
    recent.iteration(0, 2.0, 6, 1)  # one of six has just come
    recent.iteration(1, 4.5, 2, 0)
    recent.iteration(0, 5.0, 2, 2)  # all others have left
    assert recent.due(5.0)
    recent.moment(5.0, finished=1, failed=2, tokens=17, batch=4)
    gaps, moment = messages
    assert isinstance(gaps, Gaps)
    assert (gaps.seconds.tolist(), gaps.tokens.tolist()) == ([1.0, 3.0], [5, 2])
    assert moment == Moment(
        at_s=5.0, finished=1, failed=2, requests=9, tokens=17, batch=4, tbt_ms_p50=1000.0, tbt_ms_p99=3000.0
    )
    assert not recent.due(5.0 + EVERY_S / 2)
    # Nothing new: what was within the last seconds still is, until it is not.
    recent.moment(6.0, finished=1, failed=2, tokens=27)
    recent.moment(11.0, finished=1, failed=2, tokens=27)
    later = moments(messages)[1:]
    assert [each.tbt_ms_p50 for each in later] == [1000.0, None]
    assert [each.tokens_per_s for each in later] == [10.0, 0.0]
    assert len(messages) == 4


@given(st.lists(st.tuples(st.floats(0.01, 3), st.integers(0, 100)), min_size=2, max_size=30))
def test_the_rate_is_over_a_second_or_little_more(steps: list[tuple[float, int]]) -> None:
    messages: list[Happening] = []
    recent, at_s, tokens = Recent(messages.append), 0.0, 0
    observed = []
    for wait_s, made in steps:
        at_s, tokens = at_s + wait_s, tokens + made
        recent.moment(at_s, finished=0, failed=0, tokens=tokens)
        observed.append((at_s, tokens))
    for place, moment in enumerate(moments(messages)):
        if place == 0:
            assert moment.tokens_per_s is None
            continue
        before = [each for each in observed[:place] if each[0] <= moment.at_s - 1.0] or observed[:1]
        since_s, had = before[-1]
        assert moment.tokens_per_s == pytest.approx((moment.tokens - had) / (moment.at_s - since_s))


def test_a_replay_reports_a_few_times_a_second(made_up_engine: Any, trace_of: Any, play: Any) -> None:
    messages: list[Happening] = []
    trace = trace_of([10] * 40, [50] * 40)
    replay = play(made_up_engine(most=20), trace, Offered(), recent=Recent(messages.append, 40))
    result = moments(messages)
    first, last = result[0], result[-1]
    assert (first.at_s, first.tokens, first.waiting, first.batch) == (0.0, 0, 40, 0)
    assert (last.tokens, last.finished, last.batch, last.waiting, last.kv_tokens) == (2000, 40, 0, 0, 0)
    assert 3 <= len(result) <= 2 + last.at_s / EVERY_S
    middle = result[1]
    assert (middle.batch, middle.waiting) == (20, 20)
    assert middle.tokens_per_s == pytest.approx(20 / ITERATION_S, rel=0.01)
    assert (middle.tbt_ms_p50, middle.tbt_ms_p99) == pytest.approx((7.0, 7.0))
    assert middle.kv_tokens == int(replay.log.tables.iterations()["kv_tokens"][middle.tokens // 20 - 1])
    # All gaps, each once: of a request one less than it has tokens.
    gaps = [each for each in messages if isinstance(each, Gaps)]
    assert sum(int(each.tokens.sum()) for each in gaps) == 2000 - 40


def test_an_injected_fault_and_its_recovery_are_reported_again_after_resuming(
    made_up_engine: Any, trace_of: Any, play: Any
) -> None:
    messages: list[Happening] = []
    engine, planned = made_up_engine(), [Injection("model 0", at_s=0.1)]
    trace = trace_of([10] * 4, [40] * 4)
    replay = play(engine, trace, Offered(), recent=Recent(messages.append, 4), planned=planned)
    faults = [each for each in messages if isinstance(each, FaultEvent)]
    assert [(each.workers, each.struck) for each in faults] == [(("model 0",), "kill"), (("model 0",), None)]
    assert faults[0].resumed_s is None
    assert faults[1].at_s <= (faults[1].resumed_s or 0)
    assert moments(messages)[-1].workers_lost == 0
    again: list[Happening] = []
    play(made_up_engine(), replay.log, Offered(), recent=Recent(again.append, 4))
    assert again[:2] == faults
    assert isinstance(again[2], Moment)
    assert again[2].tokens == 160


def test_waiting_for_arrivals_is_reported(made_up_engine: Any, trace_of: Any, play: Any) -> None:
    messages: list[Happening] = []
    trace = trace_of([10] * 2, [3, 3], [0.0, 5.0])
    play(made_up_engine(), trace, Offered("open"), recent=Recent(messages.append, 2))
    idle = [each for each in moments(messages) if 2.0 < each.at_s < 4.9]
    assert len(idle) >= 2
    assert {(each.batch, each.tokens_per_s) for each in idle} == {(0, 0.0)}
    assert expected_of(trace, Offered("open")).last_arrival_s == 5.0
    assert expected_of(trace, Offered()).last_arrival_s == 0.0
    assert expected_of(trace, Offered(), full_length=False).tokens is None


def moment_of(sampler: ProgressSampler) -> Moment:
    messages: list[Happening] = []
    sampled = sampler.sample()
    report(Recent(messages.append, 3, exact=False), time.monotonic() - 1.0, [sampled], sampled.gaps)
    (moment,) = messages
    assert isinstance(moment, Moment)
    return moment


def test_a_client_reports_what_it_records_anyway() -> None:
    records = Records(np.arange(3))
    sampler = ProgressSampler(records)
    assert sampler.sample()[:-1] == NO_PROGRESS[:-1]
    records.begun = 3
    for place, at_s in ((0, 10.0), (1, 10.1), (0, 10.4)):
        records.chunk(place, at_s, 1)
    first = moment_of(sampler)
    assert (first.batch, first.waiting, first.tokens) == (2, 1, 3)
    assert first.tbt_ms_p50 == pytest.approx(400.0)
    # From one look to the next, and the tokens of one chunk came together.
    records.chunk(1, 10.3, 3)
    records.note(0, status=DONE)
    records.ended_places.append(0)
    second = sampler.sample()
    assert second.gaps.seconds.tolist() == pytest.approx([0.2, 0.0])
    assert second.gaps.tokens.tolist() == [1, 2]
    assert (second.ended, second.under_way, second.answered) == (1, 2, 1)


def test_chunks_that_do_not_say_how_many_tokens_they_have_say_nothing_of_times() -> None:
    records = Records(np.arange(2))
    sampler = ProgressSampler(records)
    records.begun = 2
    for at_s in (1.0, 2.0):
        records.chunk(0, at_s, 0)
    moment = moment_of(sampler)
    assert (moment.tbt_ms_p50, moment.batch) == (None, 1)


def test_of_very_many_chunks_the_newest_are_looked_at() -> None:
    records = Records(np.arange(10))
    sampler = ProgressSampler(records)
    chunks = 3 * MOST_CHUNKS
    for number in range(chunks):
        records.chunk(number % 10, number * 0.001, 1)
    gaps = sampler.sample().gaps
    assert gaps.seconds == pytest.approx(np.full(MOST_CHUNKS, 0.01))
