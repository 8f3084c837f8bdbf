"""Pieces of work that a GPU does, told by events that come later; the events are ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lamina.cluster.recorders import StreamRecorder

PLACE = torch.device("cuda", 0)


class Stream:
    """How far it has come, in milliseconds."""

    at = 0.0


class Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.comes = Event.next

    next = 0.0

    def record(self, stream: Any) -> None:
        assert stream is Stream

    def query(self) -> bool:
        return self.comes <= Stream.at

    def synchronize(self) -> None:
        Stream.at = max(Stream.at, self.comes)

    def elapsed_time(self, other: Event) -> float:
        assert self.query()
        assert other.query()
        return other.comes - self.comes


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> StreamRecorder:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda place: Stream)
    monkeypatch.setattr("lamina.cluster.recorders.time.monotonic_ns", lambda: 1_000_000_000)
    monkeypatch.setattr(Stream, "at", 0.0)
    return StreamRecorder(PLACE)


def moment(recorder: StreamRecorder, comes: float) -> Any:
    Event.next = comes
    return recorder.now()


def times(recorder: StreamRecorder) -> list[tuple[int, int]]:
    (reported,) = recorder.messages()
    return [(row[-2], row[-1]) for row in reported.rows.tolist()]


def test_finished_work_is_recorded_first(recorder: StreamRecorder) -> None:
    moments = [moment(recorder, at) for at in (1.0, 1.5, 2.0, 4.0)]
    recorder.wait(moments[0])
    recorder.note(0, 0, 0, 0, moments[0], moments[1])
    Stream.at = 3.0
    recorder.note(0, 0, 0, 1, moments[2], moments[3])
    assert recorder._count == 1
    assert times(recorder) == [(1_000_000_000, 1_000_500_000), (1_001_000_000, 1_003_000_000)]
    assert Stream.at == 4.0


def test_moments_before_one_that_was_waited_for(recorder: StreamRecorder) -> None:
    moments = [moment(recorder, at) for at in (1.0, 1.5, 2.0)]
    recorder.note(0, 0, 0, 0, moments[0], moments[1])
    recorder.wait(moments[2])
    assert times(recorder) == [(999_000_000, 999_500_000)]


def test_forgotten_requests_leave_nothing(recorder: StreamRecorder) -> None:
    recorder.note(0, 0, 0, 0, moment(recorder, 5.0), moment(recorder, 6.0))
    recorder.forget()
    assert times(recorder) == []
    assert Stream.at == 0.0
