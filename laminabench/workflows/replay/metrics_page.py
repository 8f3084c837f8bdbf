"""A live replay as Prometheus sees it while it runs: http://127.0.0.1:PORT/metrics."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from laminabench.util.errors import UserError
from laminabench.util.live_progress import Expected, Gaps, Happening, Moment
from laminabench.util.progress import Listener, Passing

if TYPE_CHECKING:
    from prometheus_client.core import Metric

HOST = "127.0.0.1"
END_S = 5.0
# Seconds between tokens: a tenth of a millisecond to a minute.
BOUNDS_S = tuple(float(f"{step}e{power}") for power in range(-4, 2) for step in (1, 2, 3, 5))
Read = Callable[[Moment], float | None]
GAUGES: Mapping[str, tuple[str, Read]] = {
    "requests_running": ("Requests that decode.", lambda now: now.batch),
    "requests_waiting": ("Requests in the system that do not decode.", lambda now: now.waiting),
    "kv_tokens_used": ("Tokens whose keys and values attention reads.", lambda now: now.kv_tokens),
    "tokens_per_second": ("Tokens a second, of about the last one.", lambda now: now.tokens_per_s),
    "recent_tbt_p50_seconds": ("Time between tokens of the last seconds.", lambda now: _s(now.tbt_ms_p50)),
    "recent_tbt_p99_seconds": ("Time between tokens of the last seconds.", lambda now: _s(now.tbt_ms_p99)),
    "workers_lost": ("Workers that are being replaced.", lambda now: now.workers_lost),
    "elapsed_seconds": ("Since the replay's clock began.", lambda now: now.at_s),
}
COUNTERS: Mapping[str, tuple[str, Read]] = {
    "tokens": ("Tokens made.", lambda now: now.tokens),
    "requests_finished": ("Requests that have all their tokens.", lambda now: now.finished),
    "requests_failed": ("Requests that failed, or were refused.", lambda now: now.failed),
}


class Between(NamedTuple):
    """Times between tokens by bucket, and added up; each change is a new one, which any thread may read."""

    counts: tuple[int, ...]
    sum_s: float

    def with_(self, gaps: Gaps) -> Between:
        places = np.searchsorted(BOUNDS_S, gaps.seconds, side="left")
        new = np.bincount(places, gaps.tokens, len(self.counts)).astype(np.int64)
        return Between(tuple((new + self.counts).tolist()), self.sum_s + float(gaps.seconds @ gaps.tokens))


@dataclass(eq=False, slots=True)  # a registry keeps it by its identity
class ReplayProgress:
    """A replay's progress so far."""

    about: Mapping[str, str]
    expected: Expected | None = None
    moment: Moment | None = None
    between: Between | None = None
    faults: int = 0
    struck: int = 0

    def take(self, happening: Happening) -> None:
        if isinstance(happening, Moment):
            self.moment = happening
        elif isinstance(happening, Gaps):
            self.between = (self.between or Between((0,) * (len(BOUNDS_S) + 1), 0.0)).with_(happening)
        elif happening.struck is None:
            self.faults += 1
        else:
            self.struck += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the known metrics; unknown ones are left out."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
            InfoMetricFamily,
        )

        def called(name: str) -> str:
            return f"laminabench_replay_{name}"

        yield InfoMetricFamily("laminabench_replay", "What is replayed.", value=dict(self.about))
        yield CounterMetricFamily(called("faults"), "Times that workers were lost.", value=self.faults)
        struck = "Workers that the replay itself killed or stopped."
        yield CounterMetricFamily(called("faults_injected"), struck, value=self.struck)
        if (expected := self.expected) is not None:
            yield GaugeMetricFamily(called("requests"), "Requests of the trace.", value=expected.requests)
            if expected.kv_capacity_tokens is not None:
                room = "Tokens whose keys and values fit."
                yield GaugeMetricFamily(called("kv_tokens_capacity"), room, value=expected.kv_capacity_tokens)
        if (moment := self.moment) is not None:
            for name, (what, value) in GAUGES.items():
                if (known := value(moment)) is not None:
                    yield GaugeMetricFamily(called(name), what, value=known)
            for name, (what, value) in COUNTERS.items():
                yield CounterMetricFamily(called(name), what, value=value(moment))
        if (between := self.between) is not None:
            up_to = np.cumsum(between.counts).tolist()
            buckets = list(zip((*map(str, BOUNDS_S), "+Inf"), up_to, strict=True))
            what = "Seconds between two tokens of a request that was not preempted meanwhile."
            yield HistogramMetricFamily(
                called("time_between_tokens_seconds"), what, buckets=buckets, sum_value=between.sum_s
            )


class MetricsPage(Passing):
    """A listener that publishes the metrics of a replay and passes its events on."""

    def __init__(self, to: Listener, progress: ReplayProgress) -> None:
        super().__init__(to)
        self._progress = progress

    @contextlib.contextmanager
    def watch(self, expected: Expected) -> Iterator[Callable[[Happening], None]]:
        self._progress.expected = expected
        with self.to.watch(expected) as report:

            def both(happening: Happening) -> None:
                self._progress.take(happening)
                report(happening)

            yield both


@contextlib.contextmanager
def metrics_served(listener: Listener, port: int | None, about: Mapping[str, str]) -> Iterator[Listener]:
    """Serve metrics while the block runs, if there is a port; the replay reports to the listener."""
    if port is None:
        yield listener
        return
    prometheus = importlib.import_module("prometheus_client")
    from laminabench.workflows.replay.metrics_server import started

    progress = ReplayProgress(about)
    registry = prometheus.CollectorRegistry()
    registry.register(progress)
    try:
        server, thread = started(prometheus.make_wsgi_app(registry), HOST, port)
    except OSError as error:
        raise UserError(
            "metrics-port-unbound",
            f"cannot listen on {HOST} port {port}: {error.strerror}; choose another --metrics-port, or 0 "
            "for any",
        ) from error
    try:
        listener.note(f"metrics are at http://{HOST}:{server.server_port}/metrics until the replay ends")
        yield MetricsPage(listener, progress)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(END_S)


def _s(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
