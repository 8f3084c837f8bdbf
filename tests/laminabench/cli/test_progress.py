"""What is shown of long work: how far it is, how fast lately and how long still; to whom, and where."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laminabench.cli import progress
from laminabench.cli.output import Output
from laminabench.cli.progress import LiveStep, Pace
from laminabench.util.live_progress import Expected, FaultEvent, Moment
from laminabench.util.progress import Once


def moment(**what: Any) -> Moment:
    return Moment(**{"at_s": 1.0, "finished": 0, "failed": 0, "requests": 10, "tokens": 0} | what)


@pytest.fixture
def time_s() -> list[float]:
    return [0.0]


def test_what_is_left_takes_as_long_as_lately(time_s: list[float]) -> None:
    pace = Pace(now=lambda: time_s[0])
    assert pace.left_s(100) is None
    pace.reached(40)  # kept from before
    assert pace.left_s(100) is None
    for done in (50, 60):
        time_s[0] += 2.0
        pace.reached(done)
    assert pace.left_s(100) == pytest.approx(8.0)
    time_s[0] += 3.0
    assert pace.left_s(100) == pytest.approx(5.0)
    time_s[0] += 30.0
    assert pace.left_s(100) == 0.0
    assert pace.left_s(None) is None


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50))), st.integers(0, 40) | st.none())
def test_it_is_never_negative(reports: list[tuple[float, int]], total: int | None) -> None:
    now_s = 0.0
    pace = Pace(now=lambda: now_s)
    for wait_s, done in reports:
        now_s += wait_s
        pace.reached(done)
        left_s = pace.left_s(total)
        assert left_s is None or left_s >= 0


def test_many_reports_do_not_make_the_stretch_short(time_s: list[float]) -> None:
    pace = Pace(now=lambda: time_s[0])
    for done in range(10_000):
        time_s[0] += 0.001
        pace.reached(done)
    assert pace.left_s(20_000) == pytest.approx(10.0, rel=0.01)


def test_tokens_say_how_long_a_live_replay_lasts(time_s: list[float]) -> None:
    expected = Expected(requests=10, tokens=1000)
    step = LiveStep("replaying", "requests", pace=Pace(now=lambda: time_s[0]), expected=expected)
    step.happens(moment(tokens=0))
    assert (step.left, step.done, step.total) == ("", 0, 10)
    time_s[0] = 4.0
    step.happens(moment(tokens=200, finished=1))
    assert step.left_s == pytest.approx(16.0)
    # Half of them failed: so many tokens will never come.
    time_s[0] = 8.0
    step.happens(moment(tokens=400, finished=4, failed=5))
    assert step.left_s == pytest.approx(2.0)
    # Where the length of answers is unknown, requests are counted.
    step = LiveStep("replaying", "requests", pace=Pace(now=lambda: time_s[0]), expected=Expected(requests=10))
    step.happens(moment(tokens=5))
    time_s[0] = 10.0
    step.happens(moment(tokens=9, finished=2))
    assert step.left_s == pytest.approx(8.0)
    # The last one has not come yet.
    open_one = Expected(requests=10, tokens=10, last_arrival_s=100.0)
    step = LiveStep("replaying", "requests", pace=Pace(now=lambda: time_s[0]), expected=open_one)
    step.happens(moment(tokens=5))
    time_s[0] = 11.0
    step.happens(moment(tokens=9, at_s=30.0))
    assert step.left_s == pytest.approx(70.0)


def out(*, quiet: bool = False) -> Output:
    return Output(as_json=False, quiet=quiet, verbose=False)


@pytest.mark.parametrize(("terminal", "drawn"), [("xterm", True), ("dumb", False)])
def test_a_terminal_shows_bars_and_retains_messages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: str, drawn: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", terminal)
    speaker = out()
    with (
        speaker.progress("sweeping", "points") as outer,
        Once(speaker).watch(Expected(requests=7)) as reported,
    ):
        outer(1, 3)
        reported(FaultEvent(at_s=0.1, workers=("model 1",), why="long ago"))  # before it was resumed
        reported(moment(requests=7, finished=2, tokens_per_s=55.0))
        reported(FaultEvent(at_s=1.5, workers=("model 0",), why="model 0 has ended"))
        speaker.note("by the [way]")
        display = speaker._board.display
        assert display is not None
    observed = capsys.readouterr()
    assert observed.out == ""
    assert "laminabench: at 1.50 s: model 0 has ended" in observed.err
    assert "laminabench: by the [way]" in observed.err
    assert "long ago" not in observed.err
    if drawn:
        assert "1/3 points" in observed.err
        assert "2/7 requests" in observed.err
        assert "55 tokens/s" in observed.err
    else:
        assert len(observed.err.splitlines()) == 2
    assert speaker._board.display is None


def test_without_a_terminal_long_work_prints_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINES_EVERY_S", 0.02)
    message = threading.Event()
    speaker = out()
    with speaker.progress("sweeping", "points") as reported:
        reported(1, 3)
        display = speaker._board.display
        assert isinstance(display, progress.Lines)
        write = display.print_message
        display.print_message = lambda sentence: (write(sentence), message.set())[0]  # type: ignore[method-assign]
        assert message.wait(30)
        reported(3, 3)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("laminabench: sweeping: 1 of 3 points, 0:00 so far")
    assert lines[-1] == "laminabench: sweeping: 3 of 3 points in 0:00"


def test_what_is_over_soon_says_nothing_and_quiet_means_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with out().progress("sweeping", "points") as reported:
        reported(1, 3)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "LINES_EVERY_S", 0.0)
    speaker = out(quiet=True)
    with speaker.watch(Expected(requests=1)) as happens:
        happens(moment())
        happens(FaultEvent(at_s=1.5, workers=("model 0",), why="gone", resumed_s=2.0))
    assert capsys.readouterr() == ("", "")


def test_an_error_ends_the_display(capsys: pytest.CaptureFixture[str]) -> None:
    speaker, before = out(), threading.active_count()
    with pytest.raises(KeyError), speaker.progress("a", "b"), speaker.progress("c", "d"):
        raise KeyError
    assert speaker._board.display is None
    assert threading.active_count() == before
    assert capsys.readouterr().err == ""
