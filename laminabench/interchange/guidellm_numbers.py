"""guidellm's metrics of a benchmark, by its names and definitions, for each end of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.interchange.calls import Calls
from laminabench.runs.status import DONE, UNFINISHED
from laminabench.sim.spec import Float64

Distribution = dict[str, Any]
STATUSES = ("successful", "errored", "incomplete", "total")
POINTS = {
    "p001": 0.001, "p01": 0.01, "p05": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5,
    "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999,
}  # fmt: skip
# Events nearer to each other than that are one.
NEAR_S = 1e-4
_LEAST_S = 1e-6


def of_values(values: Float64, weights: Float64 | None = None, count: int | None = None) -> Distribution:
    """Of weighted values; a percentile is the smallest at which so much of the weight is reached."""
    weights = np.ones(len(values)) if weights is None else weights
    if not len(values):
        empty = dict.fromkeys(("mean", "median", "mode", "variance", "std_dev", "min", "max"), 0.0)
        points = dict.fromkeys(POINTS, 0.0)
        return {**empty, "count": 0, "total_sum": 0.0, "percentiles": points, **_nothing()}
    known, place = np.unique(values, return_inverse=True)
    summed = np.bincount(place, weights, len(known))
    some = summed > 0
    known, share = (known[some], summed[some]) if some.any() else (known, np.ones(len(known)))
    share = share / share.sum()
    reached = np.cumsum(share)
    at = np.minimum(np.searchsorted(reached, list(POINTS.values())), len(known) - 1)
    points = dict(zip(POINTS, known[at].tolist(), strict=True))
    mean = float((known * share).sum())
    variance = float(((known - mean) ** 2 * share).sum())
    total = round(float(weights.sum())) if count is None else count
    return {
        "mean": mean,
        "median": points["p50"],
        "mode": float(known[np.argmax(share)]),
        "variance": variance,
        "std_dev": variance**0.5,
        "min": float(known[0]),
        "max": float(known[-1]),
        "count": total,
        "total_sum": mean * total,
        "percentiles": points,
        **_nothing(),
    }


def _nothing() -> Distribution:
    """Intervals are left out, as guidellm does without `confidence`."""
    return {"pdf": None, "mean_ci": None, "percentile_cis": None}


def rates(at_s: Float64, weights: Float64, end_s: float) -> Distribution:
    """Events a second between 0 and the end, each over the time that is nearer to it than to others."""
    inside = (at_s >= 0) & (at_s <= end_s)
    times, events = _merged(
        np.concatenate([[0.0], at_s[inside], [end_s]]), np.concatenate([[0.0], weights[inside], [0.0]])
    )
    if len(times) < 2:
        return of_values(np.zeros(0))
    middles = (times[1:] + times[:-1]) / 2
    nearer = np.diff(np.concatenate([[times[0]], middles, [times[-1]]]))
    nearer[-1] = max(nearer[-1], _LEAST_S)
    return of_values(events / nearer, nearer, round(float(events.sum())))


def at_once(start_s: Float64, stop_s: Float64, end_s: float) -> Distribution:
    """Requests under way between 0 and the end, weighted by time."""
    if not len(start_s):
        return of_values(np.zeros(0))
    changes = np.concatenate([np.ones(len(start_s)), -np.ones(len(stop_s))])
    times, change = _merged(np.concatenate([start_s, stop_s]), changes)
    before, after = np.searchsorted(times, 0.0), np.searchsorted(times, end_s, side="right")
    times = np.concatenate([[0.0], times[before:after], [end_s]])
    change = np.concatenate([[change[:before].sum()], change[before:after], [0.0]])
    lasting = np.maximum(np.diff(times), 0.0)
    level = np.maximum(np.cumsum(change), 0.0)[:-1]
    return of_values(level, lasting, len(start_s)) if lasting.any() else of_values(np.zeros(0))


def _merged(times: Float64, weights: Float64) -> tuple[Float64, Float64]:
    """In order; what comes shortly after the first of a group is one with it."""
    order = np.argsort(times, kind="stable")
    times, weights = times[order], weights[order]
    until = np.searchsorted(times, times + NEAR_S, side="right").tolist()
    first, place = [], 0
    while place < len(times):
        first.append(place)
        place = until[place]
    return times[first], np.add.reduceat(weights, first)


def summary(calls: Calls, end_s: float) -> dict[str, Any]:
    """All metrics; times are from the first request to the end."""
    chosen: dict[str, NDArray[np.bool_]] = {
        "successful": calls.status == DONE,
        "errored": (calls.status != DONE) & (calls.status != UNFINISHED),
        "incomplete": calls.status == UNFINISHED,
        "total": np.ones(len(calls), np.bool_),
    }

    alone = bool(chosen["successful"].all())

    def each(of: Callable[[NDArray[np.bool_]], Distribution]) -> dict[str, Distribution]:
        found = {name: of(some) for name, some in chosen.items() if name != "total"}
        return found | {"total": found["successful"] if alone else of(chosen["total"])}

    def simply(values: Float64, weights: Float64 | None = None) -> dict[str, Distribution]:
        known = np.nan_to_num(values)  # as guidellm counts what is not there
        return each(lambda some: of_values(known[some], None if weights is None else weights[some]))

    prompt, output = calls.prompt_tokens.astype(np.float64), calls.output_tokens.astype(np.float64)
    ended_s = np.where(np.isfinite(calls.last_s), calls.last_s, calls.sent_s)
    first_s = np.where(np.isfinite(calls.first_s), calls.first_s, ended_s)
    waited = simply(1e3 * calls.waited_s())
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token = np.where(output > 0, 1e3 * calls.spent_s() / output, np.nan)
    count = np.bincount(calls.pieces.request, minlength=len(calls))
    of, at_s, tokens = _evenly(calls, count, ended_s)

    def made(some: NDArray[np.bool_]) -> tuple[Float64, Float64]:
        return at_s[some[of]], tokens[some[of]]

    def both(some: NDArray[np.bool_]) -> Distribution:
        more_s, more = made(some)
        return rates(np.concatenate([first_s[some], more_s]), np.concatenate([prompt[some], more]), end_s)

    later = np.concatenate([[False], of[1:] == of[:-1]]) if len(of) else np.zeros(0, np.bool_)
    nothing = simply(np.zeros(len(calls)))
    return {
        "request_totals": {name: int(some.sum()) for name, some in chosen.items()},
        "requests_per_second": each(lambda some: rates(ended_s[some], np.ones(int(some.sum())), end_s)),
        "request_concurrency": each(lambda some: at_once(calls.sent_s[some], ended_s[some], end_s)),
        "request_latency": simply(calls.spent_s()),
        "request_dispatch_delay": None,
        "request_scheduled_latency": None,
        "turn_predecessor_delay": None,
        "turn_scheduling_delay": None,
        "root_dispatch_delay": None,
        "request_streaming_iterations_count": simply(count.astype(np.float64)),
        "prompt_token_count": simply(prompt),
        "output_token_count": simply(output),
        "total_token_count": simply(prompt + output),
        "time_to_first_token_ms": waited,
        "time_to_first_output_token_ms": waited,
        "time_per_output_token_ms": simply(per_token, output),
        "inter_token_latency_ms": simply(1e3 * calls.per_token_s(), np.maximum(output - 1, 0.0)),
        "time_to_last_round_trip_ms": nothing,
        "avg_round_trip_time_ms": nothing,
        "prompt_tokens_per_second": each(lambda some: rates(first_s[some], prompt[some], end_s)),
        "output_tokens_per_second": each(lambda some: rates(*made(some), end_s)),
        "tokens_per_second": each(both),
        "output_tokens_per_iteration": each(lambda some: of_values(tokens[some[of]])),
        "iter_tokens_per_iteration": each(lambda some: of_values(tokens[some[of] & later])),
        "text": dict.fromkeys(("tokens", "words", "characters")),
        "image": dict.fromkeys(("tokens", "images", "pixels", "bytes")),
        "video": dict.fromkeys(("tokens", "frames", "seconds", "bytes")),
        "audio": dict.fromkeys(("tokens", "samples", "seconds", "bytes")),
        "tool_call": dict.fromkeys(("tokens", "mixed_tokens", "count")),
        "turns": None,
        "slo_attainment": None,
        "slo_determined_requests": 0,
        "request_goodput": None,
    }


def _evenly(
    calls: Calls, count: NDArray[np.int64], ended_s: Float64
) -> tuple[NDArray[np.int64], Float64, Float64]:
    """Whose, when and how many: one token with the first piece, the others shared by pieces at equal steps.

    All at the end, where there is one piece or none.
    """
    pieces = np.maximum(count, 1)
    of = np.repeat(np.arange(len(calls)), pieces)
    place = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    steps, single = pieces[of] - 1, pieces[of] == 1
    share = np.where(single, 1.0, place / np.maximum(steps, 1))
    first_s = np.where(np.isfinite(calls.first_s), calls.first_s, ended_s)
    at_s = first_s[of] + share * (ended_s - first_s)[of]
    output = calls.output_tokens.astype(np.float64)
    shared = np.maximum(output - 1, 0.0)[of] / np.maximum(steps, 1)
    tokens = np.where(single, output[of], np.where(place == 0, np.minimum(output, 1.0)[of], shared))
    return of, at_s, tokens
