"""Throughput, batch, delays, utilisation and cost of a replay; times are whole ticks until the last step.

A token is in a window if it came after the window's start and not after its end; so is an iteration by its
end and a request by when it finished (for queueing: by when it was admitted).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from laminabench.analysis.distribution import Distribution, chunks, distribution, dot, total
from laminabench.analysis.streams import Observed, arrivals, observed_of, rows_of_batches
from laminabench.runs.summary import Cost, Energy, TimeShares, Window
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import TICKS_PER_S, Float64, Ticks, ticks

# The power a device draws at work is not measured; its rating is an upper bound.
ENERGY_BOUND = "upper: every device at its rated power all the time; hosts, network and cooling not counted"
PARTS = ("model", "attention", "network", "host")


class Lengths(Protocol):
    """Prompt and output lengths of a trace or of a Run."""

    @property
    def prompt_tokens(self) -> NDArray[np.int32]: ...

    @property
    def output_tokens(self) -> NDArray[np.int32]: ...


def produced(outcome: Outcome, window: Window) -> int:
    return sum(total(made[(at > window.start) & (at <= window.end)]) for at, made in arrivals(outcome))


def mean_batches(outcome: Outcome, window: Window, observed: Observed | None = None) -> list[float]:
    """Return each batch's mean size over the window's time, pauses included.

    The sum is the mean number of requests being served at once. Where only a client saw them they are one
    batch, and a request is in it from its first chunk to its last.
    """
    observed = observed or observed_of(outcome)
    if observed is not None:
        return [mean_at_once(observed.streams.first, observed.streams.last, window)]
    if outcome.tally is not None:
        return [outcome.tally["duration_s"] / outcome.end_s if outcome.end_s else 0.0]
    columns = outcome.iterations
    batches = int(columns["batch"].max()) + 1 if len(columns["batch"]) else 0
    sums = [0] * batches
    for rows, start, end in _spans(outcome):
        inside = overlap(start, end, window)
        for j, members in enumerate(rows_of_batches(columns["batch"][rows])):
            sums[j] += dot(inside[members], columns["size"][rows][members])
    return [some / window.ticks if window.ticks else 0.0 for some in sums]


def mean_at_once(start: Ticks, end: Ticks, window: Window) -> float:
    """Return how many of these spans overlap a moment of the window on average."""
    return total(overlap(start, end, window)) / window.ticks if window.ticks else 0.0


def time_shares(outcome: Outcome, window: Window) -> TimeShares:
    """Return how a token's time is divided over the parts of an iteration, weighted by tokens.

    `waiting` is what no part accounts for: for the other batches, for a worker, in a bubble. Parts can run at
    the same time; `overlapped` is by how much they exceed an iteration's duration, so that model +
    attention + network + host + waiting - overlapped = 1.
    """
    if (tally := outcome.tally) is not None:
        all_s = tally["duration_s"]
        parts = (*PARTS, "waiting", "overlapped")
        return TimeShares(**{part: tally[f"{part}_s"] / all_s if all_s else None for part in parts})
    columns = outcome.iterations
    # A live replay cannot see what its network took: that is in `waiting`, and not a part of 0. Of iterations
    # whose workers were lost (a fault, a resumption) not even the rest is known: they are left out.
    measured = [part for part in PARTS if not np.isnan(columns[f"{part}_s"]).all()]
    sums = dict.fromkeys((*measured, "waiting", "overlapped"), 0)
    all_time = 0
    for rows, start, end in _spans(outcome):
        inside = (end > window.start) & (end <= window.end)
        for part in measured:
            inside &= np.isfinite(columns[f"{part}_s"][rows])
        size, left = columns["size"][rows][inside], (end - start)[inside]
        all_time += dot(left, size)
        for part in measured:
            spent = ticks(columns[f"{part}_s"][rows][inside])
            sums[part] += dot(spent, size)
            left -= spent
        sums["waiting"] += dot(np.maximum(left, 0), size)
        sums["overlapped"] += dot(np.maximum(-left, 0), size)
    if not {"model", "attention"} <= sums.keys():
        # Waiting and work cannot be separated.
        sums = {part: some for part, some in sums.items() if part in measured}
    return TimeShares(**{part: some / all_time if all_time else None for part, some in sums.items()})


def utilisation(outcome: Outcome, window: Window, *, attention_pools: int = 1) -> dict[str, float | None]:
    """Return the busy share of the model replicas and attention pools (means) within the window.

    From the iterations; of one that is cut by the window's edge, the part that its time inside is of its
    duration, as if the work were spread evenly over it. If workers were lost (a fault, a resumption), of
    the time since.
    """
    workers = {"model": len(outcome.replica_busy_s), "attention": attention_pools}
    if outcome.tally is not None:
        all_s = {"model": float(outcome.replica_busy_s.sum()), "attention": outcome.attention_busy_s}
        return {part: share_of_run(outcome, all_s[part] / count) for part, count in workers.items()}
    columns = outcome.iterations
    window = structs.replace(window, start_s=max(window.start_s, unknown_until_s(outcome)))
    busy = dict.fromkeys(("model", "attention"), 0.0)
    for rows, start, end in _spans(outcome):
        inside = overlap(start, end, window)
        complete = inside == end - start
        cut = np.flatnonzero(~complete & (inside > 0))
        for part in busy:
            spent = ticks(np.nan_to_num(columns[f"{part}_s"][rows]))
            busy[part] += total(spent[complete])
            busy[part] += sum(int(spent[i]) * int(inside[i]) / int(end[i] - start[i]) for i in cut)
    if window.ticks <= 0:
        return dict.fromkeys(busy)
    return {part: min(1.0, busy[part] / (workers[part] * window.ticks)) for part in busy}


def unknown_until_s(outcome: Outcome) -> float:
    """Return when the last iteration of a lost worker ended, whose busy time is unknown; 0 without any.

    Unknown if only a client observed the replay.
    """
    if outcome.chunks is not None:
        return outcome.end_s
    columns, until = outcome.iterations, 0.0
    for rows in chunks(len(columns["start_s"])):
        lost = np.isnan(columns["model_s"][rows]) | np.isnan(columns["attention_s"][rows])
        if lost.any():
            ends = columns["start_s"][rows][lost] + columns["duration_s"][rows][lost]
            until = max(until, float(ends.max()))
    return until


def share_of_run(outcome: Outcome, busy_s: float) -> float | None:
    return busy_s / outcome.end_s if outcome.end_s > 0 else None


def queueing(outcome: Outcome, window: Window | None = None) -> Distribution:
    """Return ticks from arrival to first iteration of requests admitted in the window (start included)."""
    return since_arrival(outcome, "admitted_s", window, start_included=True)


def offered_s(outcome: Outcome) -> Float64:
    """Return when each request arrived, or was first sent where only a client saw it."""
    came: Float64 = outcome.requests["arrival_s"] if outcome.calls is None else outcome.calls["sent_s"]
    return came


def since_arrival(
    outcome: Outcome,
    moment: Literal["admitted_s", "first_token_s", "finished_s"],
    window: Window | None = None,
    *,
    start_included: bool = False,
) -> Distribution:
    """Return ticks from arrival to a moment of a request, of the requests that had it in the window."""
    columns, offered = outcome.requests, offered_s(outcome)
    delays = []
    for rows in chunks(len(columns[moment])):
        some = np.isfinite(columns[moment][rows])
        came = ticks(columns[moment][rows][some])
        delay = came - ticks(offered[rows][some])
        if window is not None:
            delay = delay[(came > window.start - start_included) & (came <= window.end)]
        delays.append(delay)
    return distribution(_joined(delays))


def tpot(
    outcome: Outcome, lengths: Lengths, window: Window | None = None, observed: Observed | None = None
) -> Distribution:
    """Return (first token to last) / (tokens - 1), in ticks, of finished requests with more than one."""
    columns = outcome.requests
    made: NDArray[np.int32] | NDArray[np.int64] = lengths.output_tokens
    observed = observed or observed_of(outcome)
    if observed is not None:
        made = observed.streams.tokens  # tokens received, whatever number was requested
    times = []
    for rows in chunks(len(columns["finished_s"])):
        some = np.isfinite(columns["finished_s"][rows]) & (made[rows] > 1)
        finished = ticks(columns["finished_s"][rows][some])
        each = np.rint((finished - ticks(columns["first_token_s"][rows][some])) / (made[rows][some] - 1))
        if window is not None:
            each = each[(finished > window.start) & (finished <= window.end)]
        times.append(each.astype(np.int64))
    return distribution(_joined(times))


def per_second(count: float, window: Window) -> float | None:
    return count * TICKS_PER_S / window.ticks if window.ticks else None


def cost(throughput_tokens_per_s: float | None, usd_per_hour: float | None) -> Cost:
    """Return the cost of tokens at this rate, and how many a dollar buys.

    None where that is infinite, and throughout where the devices have no price.
    """
    if usd_per_hour is None:
        return Cost(usd_per_hour=None, usd_per_million_tokens=None)
    per_hour = (throughput_tokens_per_s or 0.0) * 3600
    return Cost(
        usd_per_hour=usd_per_hour,
        usd_per_million_tokens=usd_per_hour / per_hour * 1e6 if per_hour else None,
        tokens_per_usd=per_hour / usd_per_hour if usd_per_hour else None,
    )


def energy(throughput_tokens_per_s: float | None, power_w: float | None) -> Energy:
    """Return an upper bound on the devices' energy for a token, and its assumption. None as in `cost`."""
    each = power_w / throughput_tokens_per_s if power_w is not None and throughput_tokens_per_s else None
    return Energy(rated_w=power_w, joules_per_token=each, bound=ENERGY_BOUND)


def _spans(outcome: Outcome) -> Iterator[tuple[slice, Ticks, Ticks]]:
    """Yield some rows of the iterations at a time, with when they started and ended."""
    start_s, duration_s = outcome.iterations["start_s"], outcome.iterations["duration_s"]
    for rows in chunks(len(start_s)):
        start = ticks(start_s[rows])
        yield rows, start, start + ticks(duration_s[rows])


def overlap(start: Ticks, end: Ticks, window: Window) -> Ticks:
    """Return how much of each span of time is in the window."""
    inside: Ticks = np.minimum(end, window.end) - np.maximum(start, window.start)
    return np.maximum(inside, 0, out=inside)


def _joined(parts: list[Ticks]) -> Ticks:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
