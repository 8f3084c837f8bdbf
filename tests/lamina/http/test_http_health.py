"""Health and metrics of an engine that hangs, and of one that only takes its time."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lamina.http import service

REQUEST = {"prompt": [3, 4, 5], "max_tokens": 4, "return_token_ids": True}
# Longer than a health check takes, much longer than an iteration, and short.
SILENCE_S = 0.3
DEADLINE_S = 60.0


@pytest.fixture
def hanging(serve: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, threading.Event]]:
    """A server whose engine's next iteration does not end before it is let go."""
    monkeypatch.setattr(service, "LONGEST_SILENCE_S", SILENCE_S)
    with serve() as running:
        let_go = threading.Event()
        step = running.service.engine.step

        def hang() -> Any:
            assert let_go.wait(DEADLINE_S)
            return step()

        monkeypatch.setattr(running.service.engine, "step", hang)
        yield running, let_go
        let_go.set()


def eventually(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def age_s(running: Any) -> float:
    page = running.call("GET", "/metrics").body.decode()
    (age,) = re.findall(r"^lamina_iteration_age_seconds (\S+)$", page, re.M)
    return float(age)


def test_a_hanging_engine_is_unhealthy_until_it_continues(
    hanging: tuple[Any, threading.Event],
) -> None:
    running, let_go = hanging
    assert running.call("GET", "/health").status == 200
    eventually(lambda: age_s(running) == 0)
    answers: list[Any] = []
    request = threading.Thread(
        target=lambda: answers.append(running.call("POST", "/v1/completions", REQUEST))
    )
    request.start()
    eventually(lambda: running.call("GET", "/health").status == 503)
    error = running.call("GET", "/health").error(503)
    assert error["code"] == "silent"
    assert re.search(r"no further for \d+ s", error["message"])
    assert age_s(running) > SILENCE_S
    # Prompts that go on are progress.
    running.service.engine.core.advanced_s = time.monotonic() + DEADLINE_S
    assert running.call("GET", "/health").status == 200
    running.service.engine.core.advanced_s = 0.0
    assert running.call("GET", "/health").status == 503
    let_go.set()
    request.join(DEADLINE_S)
    assert answers[0].status == 200
    eventually(lambda: age_s(running) == 0)
    assert running.call("GET", "/health").status == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_whose_thread_has_ended_is_not_healthy(serve: Any) -> None:
    with serve() as running:
        driver = running.service.driver

        def leave() -> None:
            raise SystemExit

        driver.schedule_call(leave)
        eventually(lambda: bool(driver.ended))
        assert running.call("GET", "/health").error(503)["code"] == "silent"
