"""Statistics of a live replay's last seconds, from what each of its steps knows anyway.

An iteration costs two appends here; everything else is done a few times a second.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from laminabench.analysis.distribution import Distribution, distribution
from laminabench.sim.simulate import Offered
from laminabench.sim.spec import TICKS_PER_S, ticks
from laminabench.traces.table import Trace
from laminabench.util.live_progress import Expected, Gaps, Happening, Moment
from laminabench.util.progress import Listener

EVERY_S = 0.25
RATE_S = 1.0
TBT_S = 5.0


@dataclass(slots=True)
class Recent:
    """A reporter of a replay's Moments, at most so many a second."""

    on_event: Callable[[Happening], None] = lambda happening: None
    requests: int = 0
    exact: bool = True  # it gets all gaps, so it can report them
    _due_s: float = -math.inf
    _last_s: dict[int, float] = field(default_factory=dict)  # when each batch last made tokens
    _seconds: list[float] = field(default_factory=list)  # gaps since the last Moment, and tokens after each
    _tokens: list[int] = field(default_factory=list)
    _gaps: deque[tuple[float, Gaps]] = field(default_factory=deque)  # reported before, by time
    _made: deque[tuple[float, int]] = field(default_factory=deque)  # tokens so far, by when

    def iteration(self, batch: int, end_s: float, size: int, joined: int) -> None:
        """Add an iteration of so many tokens; requests that joined had none in the one before."""
        if size > joined and batch in self._last_s:
            self._seconds.append(end_s - self._last_s[batch])
            self._tokens.append(size - joined)
        self._last_s[batch] = end_s

    def gaps(self, at_s: float, gaps: Gaps) -> None:
        """Add times between tokens that were computed elsewhere."""
        if len(gaps.seconds):
            self._gaps.append((at_s, gaps))

    def due(self, at_s: float) -> bool:
        """Return whether it is time for a Moment."""
        return at_s >= self._due_s

    def moment(
        self,
        at_s: float,
        *,
        finished: int,
        failed: int,
        tokens: int,
        batch: int | None = None,
        waiting: int | None = None,
        kv_tokens: int | None = None,
        workers_lost: int = 0,
    ) -> None:
        """Report a Moment."""
        self._due_s = at_s + EVERY_S
        if self._seconds:
            new = Gaps(np.array(self._seconds), np.array(self._tokens, np.int64))
            self._seconds, self._tokens = [], []
            self.gaps(at_s, new)
            if self.exact:
                self.on_event(new)
        times = self._between(at_s)
        self.on_event(
            Moment(
                at_s=at_s,
                finished=finished,
                failed=failed,
                requests=self.requests,
                tokens=tokens,
                tokens_per_s=self._rate(at_s, tokens),
                tbt_ms_p50=_ms(times, 500),
                tbt_ms_p99=_ms(times, 990),
                batch=batch,
                waiting=waiting,
                kv_tokens=kv_tokens,
                workers_lost=workers_lost,
            )
        )

    def _rate(self, at_s: float, tokens: int) -> float | None:
        """Return the rate over the shortest long enough stretch up to now; None for the first Moment."""
        made = self._made
        while len(made) > 1 and made[1][0] <= at_s - RATE_S:
            made.popleft()
        since = at_s - made[0][0] if made else 0.0
        rate = (tokens - made[0][1]) / since if since > 0 else None
        made.append((at_s, tokens))
        return rate

    def _between(self, at_s: float) -> Distribution | None:
        gaps = self._gaps
        while gaps and gaps[0][0] < at_s - TBT_S:
            gaps.popleft()
        if not gaps:
            return None
        seconds, tokens = (np.concatenate(parts) for parts in zip(*(each for _, each in gaps), strict=True))
        return distribution(ticks(np.maximum(seconds, 0.0)), tokens)


def expected_of(
    trace: Trace,
    offered: Offered,
    kv_capacity_tokens: int | None = None,
    workers: Sequence[str] = (),
    *,
    full_length: bool = True,
) -> Expected:
    """Return what is known as the clock starts; `full_length`: responses are as long as the trace's."""
    return Expected(
        requests=len(trace),
        tokens=int(trace.output_tokens.sum(dtype=np.int64)) if full_length else None,
        last_arrival_s=float(trace.arrival_s[-1]) if offered.mode == "open" and len(trace) else 0.0,
        kv_capacity_tokens=kv_capacity_tokens or None,
        workers=tuple(workers),
    )


@contextlib.contextmanager
def watched(listener: Listener, expected: Expected, *, exact: bool = True) -> Iterator[Recent]:
    """Yield what reports the progress of a live replay."""
    with listener.watch(expected) as on_event:
        yield Recent(on_event, expected.requests, exact)


def _ms(times: Distribution | None, permille: int) -> float | None:
    value = None if times is None else times.percentile(permille)
    return None if value is None else value * 1000 / TICKS_PER_S
