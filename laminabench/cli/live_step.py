"""The progress of a live replay in words: the last seconds, and lost workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from laminabench.cli.progress import Step
from laminabench.util.live_progress import Expected, FaultEvent, Moment


@dataclass(slots=True)
class LiveStep(Step):
    """The progress of a live replay, measured in tokens rather than requests."""

    expected: Expected = field(default_factory=lambda: Expected(requests=0))
    moment: Moment | None = None
    _tokens: int | None = None  # expected of all requests that do not fail

    def happens(self, moment: Moment) -> None:
        """Update the step from a moment of the replay."""
        self.moment = moment
        self.done, self.total = moment.finished + moment.failed, moment.requests
        if self.expected.tokens is not None and moment.requests:
            self._tokens = round(self.expected.tokens * (1 - moment.failed / moment.requests))
        self.pace.reached(self.done if self._tokens is None else moment.tokens)
        self.more = how_it_goes(moment, self.expected.kv_capacity_tokens)

    @property
    def left_s(self) -> float | None:
        left_s = self.pace.left_s(self.total if self._tokens is None else self._tokens)
        if left_s is None or self.moment is None:
            return None
        # An open replay does not end before its last arrival.
        return max(left_s, self.expected.last_arrival_s - self.moment.at_s)


def how_it_goes(moment: Moment, kv_capacity_tokens: int | None) -> str:
    """Describe the last seconds."""
    parts = []
    if moment.tokens_per_s is not None:
        parts.append(f"{moment.tokens_per_s:,.0f} tokens/s")
    if moment.tbt_ms_p50 is not None and moment.tbt_ms_p99 is not None:
        parts.append(f"TBT p50 {_ms(moment.tbt_ms_p50)} and p99 {_ms(moment.tbt_ms_p99)} ms")
    if moment.batch is not None:
        parts.append(f"{moment.batch:,} decode")
    if moment.waiting:
        parts.append(f"{moment.waiting:,} wait")
    if moment.kv_tokens is not None and kv_capacity_tokens:
        parts.append(f"KV {moment.kv_tokens / kv_capacity_tokens:.0%}")
    if moment.failed:
        parts.append(f"{moment.failed:,} failed")
    if moment.workers_lost:
        parts.append(f"{moment.workers_lost:,} {'worker' if moment.workers_lost == 1 else 'workers'} lost")
    return ", ".join(parts)


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def sentence_of(fault: FaultEvent) -> str:
    """Describe a fault."""
    if fault.struck is not None:
        return f"at {fault.at_s:.2f} s: {', '.join(fault.workers)} gets a {fault.struck} (--chaos)"
    unnamed = [worker for worker in fault.workers if worker not in fault.why]
    others = f"; lost too: {', '.join(unnamed)}" if unnamed else ""
    went_on = "" if fault.resumed_s is None else f"; work went on {fault.resumed_s - fault.at_s:.2f} s later"
    return f"at {fault.at_s:.2f} s: {fault.why}{others}{went_on}"
