"""The driver without HTTP: a real engine in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lamina.http.driver import Driver, Ticket, Update
from lamina.http.errors import ClosedError, FullError
from lamina.serve import Sampling

Make = Callable[..., Any]


class Listener:
    """What a driver tells, kept by request."""

    def __init__(self) -> None:
        self.news: queue.Queue[list[Update]] = queue.Queue()
        self.tokens: dict[Ticket, dict[int, list[int]]] = {}
        self.reasons: dict[Ticket, dict[int, str]] = {}
        self.ended: dict[Ticket, Update] = {}
        self.taken: set[Ticket] = set()

    def receive(self) -> None:
        """One delivery."""
        for each in self.news.get(timeout=60):
            assert each.ticket not in self.ended, "told of somebody after the end"
            if each.taken:
                self.taken.add(each.ticket)
            for piece in each.pieces:
                self.tokens.setdefault(each.ticket, {}).setdefault(piece.sample, []).extend(piece.tokens)
                if piece.finish_reason:
                    self.reasons.setdefault(each.ticket, {})[piece.sample] = piece.finish_reason
            if each.ended:
                self.ended[each.ticket] = each

    def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.receive()


@pytest.fixture(scope="module")
def engine(make_engine: Make) -> Any:
    """One after the other the tests have it to themselves."""
    return make_engine(max_sequences=4)


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def driver(engine: Any, listener: Listener) -> Iterator[Driver]:
    made = Driver(engine, listener.news.put, most_waiting=6)
    made.start()
    yield made
    made.stop("the test is over")
    made.join(60)
    assert made.ended
    assert made.error is None
    assert engine.idle
    assert engine.used_kv_tokens == 0
    engine.check_integrity()


def ticket(length: int = 3, **sampling: Any) -> Ticket:
    requested = {"max_tokens": 10, "temperature": 1.0, "seed": 4, "ignore_eos": True} | sampling
    return Ticket(list(range(1, length + 1)), Sampling(**requested))


def test_tokens_are_those_of_the_engine(driver: Driver, listener: Listener, make_engine: Make) -> None:
    tickets = [ticket(), ticket(2, n=3), ticket(5, max_tokens=4)]
    driver.submit(tickets)
    listener.until(lambda: len(listener.ended) == 3)
    other = make_engine()
    for each in tickets:
        expected = other.generate([each.prompt], each.sampling)[0].completions
        reported = listener.tokens[each]
        assert [tuple(reported[sample]) for sample in range(len(expected))] == [
            one.tokens for one in expected
        ]
        assert listener.reasons[each] == dict.fromkeys(range(len(expected)), "length")
    assert listener.taken == set(tickets)


def test_samples_are_reported_as_they_end(driver: Driver, listener: Listener, make_engine: Make) -> None:
    one = ticket(n=2, max_tokens=30, logprobs=1)
    plain = make_engine().generate([one.prompt], one.sampling)[0].completions
    # A token that only one of the two makes, early on.
    stop = next(token for token in plain[0].tokens[:10] if token not in plain[1].tokens)
    requested = Ticket(one.prompt, Sampling(**{**vars(one.sampling), "stop_tokens": (stop,)}))
    driver.submit([requested])
    listener.until(lambda: 0 in listener.reasons.get(requested, {}))
    assert listener.reasons[requested] == {0: "stop"}
    assert requested not in listener.ended
    listener.until(lambda: requested in listener.ended)
    assert listener.reasons[requested] == {0: "stop", 1: "length"}
    assert len(listener.tokens[requested][1]) == 30


def test_a_refused_request_does_not_affect_others(driver: Driver, listener: Listener) -> None:
    good, bad = ticket(), Ticket([999_999], Sampling())
    driver.submit([good, bad])
    listener.until(lambda: len(listener.ended) == 2)
    assert "999999" in (listener.ended[bad].refused or "")
    assert listener.ended[good].refused is None


def test_cancelled_requests_report_nothing(driver: Driver, listener: Listener) -> None:
    lost, stays = ticket(max_tokens=400), ticket(max_tokens=60)
    driver.submit([lost, stays])
    listener.until(lambda: lost in listener.tokens)
    driver.cancel([lost])
    listener.until(lambda: stays in listener.ended)
    assert lost not in listener.ended
    driver.cancel([lost, stays])  # once more is no harm
    late = ticket()
    driver.submit([late])
    listener.until(lambda: late in listener.ended)


def test_cancelled_before_it_was_taken(driver: Driver, listener: Listener, wire: Any) -> None:
    early, other = ticket(), ticket()
    with wire.stored(driver):
        driver.submit([early, other])
        driver.cancel([early])
    listener.until(lambda: other in listener.ended)
    assert early not in listener.taken
    assert driver.waiting == 0


def test_too_many_are_refused_all_together(driver: Driver, listener: Listener, wire: Any) -> None:
    with wire.stored(driver):
        driver.submit([ticket() for _ in range(4)])
        with pytest.raises(FullError, match="4 requests wait, and no more than 6 may"):
            driver.submit([ticket() for _ in range(3)])
        assert driver.waiting == 4
    listener.until(lambda: len(listener.ended) == 4)
    assert driver.waiting == 0


def test_unfinished_requests_end_with_the_reason(engine: Any, listener: Listener) -> None:
    driver = Driver(engine, listener.news.put)
    driver.start()
    runs, waits = [ticket(max_tokens=400) for _ in range(4)], ticket()
    driver.submit([*runs, waits])
    listener.until(lambda: all(each in listener.tokens for each in runs))
    driver.stop("enough")
    driver.join(60)
    listener.until(lambda: len(listener.ended) == 5)
    assert {news.error for news in listener.ended.values()} == {"enough"}
    with pytest.raises(ClosedError, match="enough"):
        driver.submit([ticket()])
    assert engine.idle
    assert engine.used_kv_tokens == 0


def test_a_failed_engine_fails_all_requests(make_engine: Make, listener: Listener) -> None:
    engine, failed = make_engine(), threading.Event()
    driver = Driver(engine, listener.news.put, failed=failed.set)
    driver.start()
    one = ticket(max_tokens=400)
    driver.submit([one])
    listener.until(lambda: one in listener.tokens)
    driver.schedule_call(engine.close)
    assert failed.wait(60)
    listener.until(lambda: one in listener.ended)
    assert "the engine has failed: the engine was closed" in (listener.ended[one].error or "")
    with pytest.raises(ClosedError, match="the engine has failed"):
        driver.submit([ticket()])
