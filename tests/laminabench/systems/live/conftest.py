"""Small traces, and replays of them on an engine whose clock is made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered
from laminabench.systems.live.lamina.log import ReplayLog
from laminabench.systems.live.lamina.loop import Clock, Order, Replay
from laminabench.systems.live.lamina.records import recorded
from laminabench.traces.table import Trace, TraceMeta


@pytest.fixture(scope="session")
def trace_of() -> Callable[..., Trace]:
    """Requests of these lengths, which all come at once unless they have times."""

    def made(
        prompts: Sequence[int], outputs: Sequence[int], arrival_s: Sequence[float] | None = None
    ) -> Trace:
        times = np.zeros(len(prompts)) if arrival_s is None else np.array(arrival_s, np.float64)
        meta = TraceMeta("small", has_arrivals=arrival_s is not None)
        return Trace(times, np.array(prompts, np.int32), np.array(outputs, np.int32), meta)

    return made


@pytest.fixture(scope="session")
def play() -> Callable[..., Replay]:
    """The whole of a replay, or what its log has left of it."""

    def played(
        engine: Any, what: Trace | ReplayLog, offered: Offered, order: Order | None = None, **more: Any
    ) -> Replay:
        log, order = what if isinstance(what, ReplayLog) else ReplayLog(what), order or Order(None)
        if order.key is not None:
            engine.priority = order.policy
        replay = Replay(engine, offered, order, log, clock=Clock(engine.now, engine.sleep), **more)
        replay.run()
        return replay

    return played


@pytest.fixture(scope="session")
def outcome_of() -> Callable[..., Outcome]:
    """What came of a replay, whose workers have kept to the schedule."""

    def made(engine: Any, replay: Replay) -> Outcome:
        result = recorded(engine, replay.clock, replay.log.before)
        assert result.violations == []
        return result.outcome(replay.log, engine.capacity)

    return made
