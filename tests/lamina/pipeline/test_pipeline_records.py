"""What workers recorded, put together: nothing is lost but the oldest, and sums are whole."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lamina.pipeline.records as module
from lamina.cluster.messages import decode, encode
from lamina.pipeline import Recorder, Records
from lamina.pipeline.records import gather

# batch, iteration, cycle, slice, start_ns, end_ns
Row = tuple[int, int, int, int, int, int]


def sent(recorder: Recorder) -> list[Any]:
    """Its messages as the front end has them."""
    return [decode(encode(message), "model 0") for message in recorder.messages()]


def rows_of(records: Records) -> list[tuple[int, ...]]:
    names = ("batch", "iteration", "cycle", "slice", "start_ns", "end_ns")
    return list(zip(*(getattr(records, name).tolist() for name in names), strict=True))


def noted(recorder: Recorder, lengths: list[int], slices: int = 3, batches: int = 2) -> list[Row]:
    """Pieces of work of these lengths, one after the other as a worker does them."""
    rows, now = [], 0
    for number, length in enumerate(lengths):
        turn, batch = divmod(number, batches)
        iteration, slice_ = divmod(turn, slices)
        rows.append((batch, iteration, iteration, slice_, now, now + length))
        recorder.note(*rows[-1])
        now += length + 1
    return rows


@given(
    st.lists(st.integers(0, 10**6), max_size=60),
    st.integers(1, 20),
    st.integers(1, 9),
)
def test_the_oldest_are_forgotten_and_sums_are_not(lengths: list[int], limit: int, rows: int) -> None:
    recorder = Recorder(limit)
    noted_rows = noted(recorder, lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROWS_A_MESSAGE", rows)
        messages = sent(recorder)
    assert [message.more for message in messages] == [True] * (len(messages) - 1) + [False]
    assert all(len(message.rows) <= rows for message in messages)
    records = gather(["one"], [0], [messages])
    assert rows_of(records) == noted_rows[-limit:]
    assert records.busy_s.tolist() == [sum(lengths) / 1e9]
    sums: dict[tuple[int, int], int] = defaultdict(int)
    for batch, iteration, _, _, start, end in noted_rows:
        sums[batch, iteration] += end - start
    iterations = records.of_iterations
    assert list(zip(iterations.batch.tolist(), iterations.iteration.tolist(), strict=True)) == sorted(sums)
    assert iterations.model_s.tolist() == [sums[key] / 1e9 for key in sorted(sums)]
    assert not iterations.attention_s.any()


def test_a_report_can_be_repeated() -> None:
    recorder = Recorder(4)
    first = noted(recorder, [5] * 3)
    assert rows_of(gather(["one"], [0], [sent(recorder)])) == first
    assert [encode(part) for part in sent(recorder)] == [encode(part) for part in sent(recorder)]
    recorder.note(0, 1, 1, 0, 100, 120)
    recorder.note(1, 1, 1, 0, 130, 150)
    again = gather(["one"], [0], [sent(recorder)])
    assert rows_of(again) == [*first[1:], (0, 1, 1, 0, 100, 120), (1, 1, 1, 0, 130, 150)]
    # Of batch 0 slices 0 and 1 in iteration 0, of batch 1 slice 0.
    assert again.of_iterations.model_s.tolist() == pytest.approx([10e-9, 20e-9, 5e-9, 20e-9])


def test_messages_are_well_below_what_a_control_message_may_have() -> None:
    recorder = Recorder(3 * module._ROWS_A_MESSAGE)
    recorder._count = 3 * module._ROWS_A_MESSAGE - 1
    messages = list(recorder.messages())
    assert [message.more for message in messages] == [True, True, False]
    assert max(len(encode(message)) for message in messages) < 12 << 20
    assert len(gather(["one"], [0], [messages])) == recorder._count


def test_records_without_work() -> None:
    records = gather(["model 0", "attention 0"], [0, -1], [sent(Recorder()), sent(Recorder())])
    assert len(records) == len(records.of_iterations.batch) == 0
    assert records.idle() == {"model 0": None, "attention 0": None}
    assert records.busy_s.tolist() == [0, 0]


def of_workers(replica_of: list[int], work: list[list[Row]]) -> Records:
    recorders = [Recorder() for _ in work]
    for recorder, rows in zip(recorders, work, strict=True):
        for row in rows:
            recorder.note(*row)
    names = [f"worker {number}" for number in range(len(work))]
    return gather(names, replica_of, [sent(recorder) for recorder in recorders])


def test_the_longest_of_a_kind_counts_and_replicas_add_up() -> None:
    # Two replicas of two ranks, two attention workers; nanoseconds of two iterations of batch 3.
    spent = [(100, 7), (120, 5), (30, 0), (20, 9), (50, 60), (55, 40)]
    records = of_workers(
        [0, 0, 1, 1, -1, -1],
        [[(3, 0, 0, 0, 0, a), (3, 1, 4, 0, 1000, 1000 + b)] for a, b in spent],
    )
    iterations = records.of_iterations
    assert (iterations.batch.tolist(), iterations.iteration.tolist()) == ([3, 3], [0, 1])
    assert iterations.model_s.tolist() == pytest.approx([150e-9, 16e-9])
    assert iterations.attention_s.tolist() == pytest.approx([55e-9, 60e-9])


def test_idle_time_is_that_between_when_all_had_begun_and_the_first_had_ended() -> None:
    records = of_workers(
        [0, -1],
        [
            [(0, 0, 0, 0, 0, 100), (0, 0, 0, 1, 200, 300)],
            [(0, 0, 0, 0, 100, 150), (0, 0, 0, 1, 180, 200), (0, 0, 0, 2, 400, 500)],
        ],
    )
    # From 100 to 300: the first has 100 of it, the second 70.
    assert records.idle() == pytest.approx({"worker 0": 0.5, "worker 1": 0.65})
    early = records.where(records.end_ns <= 150)
    assert early.idle() == {"worker 0": None, "worker 1": None}, "one ended as the other began"
    assert early.busy_s.tolist() == records.busy_s.tolist(), "sums stay"


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=10), min_size=1, max_size=4))
def test_idle_shares_are_not_negative(lengths: list[list[int]]) -> None:
    recorders = [Recorder() for _ in lengths]
    for recorder, own in zip(recorders, lengths, strict=True):
        noted(recorder, own)
    names = [str(number) for number in range(len(lengths))]
    records = gather(names, [0] * len(names), [sent(recorder) for recorder in recorders])
    shares = list(records.idle().values())
    assert all(share is not None and 0 <= share <= 1 for share in shares)
