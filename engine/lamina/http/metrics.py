"""What /metrics shows: counted by the driver's thread as it goes, written for Prometheus when it asks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from lamina.http.driver import Driver, Ticket
from lamina.serve import Engine, Result, Step

# Seconds between tokens: half a millisecond to a minute.
GAPS_S = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2,
    0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 60.0,
)  # fmt: skip
WAITS_S = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
# How often workers report how long they have worked, while there are requests.
ASK_S = 1.0


class Histogram:
    """Counts of values by bucket: cheap to add to, unlike one that any thread may add to."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def metric(self, name: str, what: str) -> Metric:
        total, buckets = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return HistogramMetricFamily(name, what, buckets=buckets, sum_value=self._sum)


class Meter:
    """Keeps count. One thread adds, and another reads now and then: what it reads may be a step old."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._gaps, self._sizes = Histogram(GAPS_S), Histogram(SIZES)
        self._first, self._whole = Histogram(WAITS_S), Histogram(WAITS_S)
        self._tokens_in = self._tokens_out = self._preemptions = 0
        self._ends: Counter[str] = Counter()
        self.answers: Counter[tuple[str, int]] = Counter()  # by path and status, of the event loop
        self._worked_s: dict[str, float] = {}
        self._asked_s = 0.0

    # Called by the driver's thread.

    def stepped(self, step: Step) -> None:
        if step.size:
            self._sizes.add(step.size)
        self._preemptions += len(step.preempted)
        if step.ended_s - self._asked_s > ASK_S:
            self._asked_s = step.ended_s
            self.ask()

    def ask(self) -> None:
        """Ask workers how long they have worked; by the thread that owns the engine."""
        self._worked_s = self._engine.worked_s()

    def reported(self, ticket: Ticket, tokens: int, at_s: float) -> None:
        if not tokens:
            return
        self._tokens_out += tokens
        if ticket.last_s:
            self._gaps.add(max(0.0, at_s - ticket.last_s), tokens)
        else:
            self._first.add(max(0.0, at_s - ticket.arrived_s))
            self._tokens_in += len(ticket.prompt)

    def ended(self, ticket: Ticket, result: Result) -> None:
        ends = {done.finish_reason for done in result.completions}
        if result.error:
            end = "failed"
        elif ticket.satisfied:
            end = "stop"
        else:
            end = next((end for end in ("cancelled", "length", "stop") if end in ends), "cancelled")
        self._ends[end] += 1
        if end in ("length", "stop"):
            self._whole.add(max(0.0, ticket.last_s - ticket.arrived_s))

    # Called for Prometheus.

    def text(self, driver: Driver) -> bytes:
        """All of it, in Prometheus' format."""
        driver.ask(self.ask)
        registry = CollectorRegistry()
        registry.register(_Collector(lambda: self._metrics(driver)))
        return generate_latest(registry)

    def _metrics(self, driver: Driver) -> Iterator[Metric]:
        """What there is, by the name that it has in Prometheus."""
        engine = self._engine
        gap = "Seconds between two tokens of a request, as the engine made them."
        yield self._gaps.metric("lamina_time_between_tokens_seconds", gap)
        first = "Seconds from a request's arrival to its first token, as the engine made it."
        yield self._first.metric("lamina_time_to_first_token_seconds", first)
        whole = "Seconds from a request's arrival to its last token, of those that were not called off."
        yield self._whole.metric("lamina_request_seconds", whole)
        yield self._sizes.metric("lamina_batch_size", "Sequences of an iteration of one batch.")
        gauges = (
            ("lamina_requests_running", "Requests that are in a batch.", driver.running),
            ("lamina_requests_waiting", "Requests that have not begun.", driver.waiting),
            ("lamina_kv_tokens_used", "KV memory promised to requests, in tokens.", engine.used_kv_tokens),
            ("lamina_kv_tokens_capacity", "KV memory, in tokens.", engine.kv_tokens),
        )
        for name, what, value in gauges:
            yield GaugeMetricFamily(name, what, value=value)
        counters = (
            ("lamina_prompt_tokens", "Tokens of prompts whose answers have begun.", self._tokens_in),
            ("lamina_completion_tokens", "Tokens made.", self._tokens_out),
            ("lamina_preemptions", "Requests that had to make room and began again.", self._preemptions),
            ("lamina_faults", "Workers lost and replaced, by occasion.", len(engine.faults)),
        )
        for name, what, count in counters:
            yield CounterMetricFamily(name, what, value=count)
        ends = {(end,): self._ends[end] for end in ("length", "stop", "cancelled", "failed")}
        yield _labelled("lamina_requests", "Requests by how they ended.", ["end"], ends)
        answers = {(path, str(status)): count for (path, status), count in sorted(self.answers.items())}
        what = "HTTP answers by path and status."
        yield _labelled("lamina_http_answers", what, ["path", "status"], answers)
        what = "Seconds that a worker computed, and did not wait; asked every second while anybody is served."
        worked = {(worker,): seconds for worker, seconds in self._worked_s.items()}
        yield _labelled("lamina_worker_busy_seconds", what, ["worker"], worked)


def _labelled(name: str, what: str, labels: list[str], counts: Mapping[Any, float]) -> Metric:
    family = CounterMetricFamily(name, what, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


class _Collector(NamedTuple):
    collect: Callable[[], Iterator[Metric]]
