"""guidellm's metrics of a benchmark, by its names and definitions, for each end of a request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from laminabench.interchange.calls import Calls
from laminabench.runs.status import DONE, UNFINISHED
from laminabench.sim.spec import Float64
from laminabench.util.json import Json

Distribution = dict[str, Json]
STATUSES = ("successful", "errored", "incomplete", "total")
POINTS = {
    "p001": 0.001, "p01": 0.01, "p05": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5,
    "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999,
}  # fmt: skip


def of_values(values: Float64, weights: Float64 | None = None, count: int | None = None) -> Distribution:
    """Summarise weighted values; a percentile is the smallest value that reaches its share of the weight."""
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
    """Return empty intervals, as guidellm does without `confidence`."""
    return {"pdf": None, "mean_ci": None, "percentile_cis": None}


def rate(total: float, end_s: float) -> Distribution:
    """Return a rate over the whole Run; how it changed over time is left out."""
    return of_values(np.array([total / end_s]), count=round(total)) if total else of_values(np.zeros(0))


def _chosen(calls: Calls) -> dict[str, NDArray[np.bool_]]:
    return {
        "successful": calls.status == DONE,
        "errored": (calls.status != DONE) & (calls.status != UNFINISHED),
        "incomplete": calls.status == UNFINISHED,
        "total": np.ones(len(calls), np.bool_),
    }


def request_totals(calls: Calls) -> dict[str, int]:
    """Count requests by their end."""
    return {name: int(some.sum()) for name, some in _chosen(calls).items()}


def summary(calls: Calls, end_s: float) -> dict[str, Json]:
    """Return all metrics; times are from the first request to the end."""
    chosen = _chosen(calls)
    alone = bool(chosen["successful"].all())

    def each(of: Callable[[NDArray[np.bool_]], Distribution]) -> dict[str, Distribution]:
        parts = {name: of(some) for name, some in chosen.items() if name != "total"}
        return parts | {"total": parts["successful"] if alone else of(chosen["total"])}

    def simply(values: Float64, weights: Float64 | None = None) -> dict[str, Distribution]:
        known = np.nan_to_num(values)  # guidellm counts missing values as 0
        return each(lambda some: of_values(known[some], None if weights is None else weights[some]))

    def per_second(values: Float64) -> dict[str, Distribution]:
        return each(lambda some: rate(float(values[some].sum()), end_s))

    prompt, output = calls.prompt_tokens.astype(np.float64), calls.output_tokens.astype(np.float64)
    waited = simply(1e3 * calls.waited_s())
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token = np.where(output > 0, 1e3 * calls.spent_s() / output, np.nan)
    of, tokens = calls.pieces.request, calls.pieces.tokens.astype(np.float64)
    later = np.concatenate([[False], of[1:] == of[:-1]]) if len(of) else np.zeros(0, np.bool_)
    nothing = simply(np.zeros(len(calls)))
    return {
        "request_totals": request_totals(calls),
        "requests_per_second": per_second(np.ones(len(calls))),
        "request_concurrency": per_second(np.nan_to_num(calls.spent_s())),
        "request_latency": simply(calls.spent_s()),
        "request_dispatch_delay": None,
        "request_scheduled_latency": None,
        "turn_predecessor_delay": None,
        "turn_scheduling_delay": None,
        "root_dispatch_delay": None,
        "request_streaming_iterations_count": simply(
            np.bincount(of, minlength=len(calls)).astype(np.float64)
        ),
        "prompt_token_count": simply(prompt),
        "output_token_count": simply(output),
        "total_token_count": simply(prompt + output),
        "time_to_first_token_ms": waited,
        "time_to_first_output_token_ms": waited,
        "time_per_output_token_ms": simply(per_token, output),
        "inter_token_latency_ms": simply(1e3 * calls.per_token_s(), np.maximum(output - 1, 0.0)),
        "time_to_last_round_trip_ms": nothing,
        "avg_round_trip_time_ms": nothing,
        "prompt_tokens_per_second": per_second(prompt),
        "output_tokens_per_second": per_second(output),
        "tokens_per_second": per_second(prompt + output),
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
