"""aiperf's summary by its names and definitions, over requests that were answered completely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.interchange.calls import Calls
from laminabench.sim.spec import Float64

Metric = dict[str, str | float]
POINTS = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def per_request(calls: Calls) -> Mapping[str, tuple[str, Float64]]:
    """Return (unit, a value for each request) by name; NaN where a request has none."""
    latency, first = 1e3 * calls.spent_s(), 1e3 * calls.waited_s()
    output, prompt = calls.output_tokens.astype(np.float64), calls.prompt_tokens.astype(np.float64)
    between = 1e3 * calls.per_token_s()
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = {
            "output_token_throughput_per_user": 1e3 / between,
            "e2e_output_token_throughput": 1e3 * output / latency,
            "prefill_throughput_per_user": 1e3 * prompt / first,
        }
    return {
        "request_latency": ("ms", latency),
        "time_to_first_token": ("ms", first),
        "time_to_first_output_token": ("ms", first),
        "time_to_second_token": ("ms", _second(calls)),
        "inter_token_latency": ("ms", between),
        "output_sequence_length": ("tokens", output),
        "input_sequence_length": ("tokens", prompt),
        "output_token_count": ("tokens", output),
        "decode_duration": ("ms", latency - first),
        **{
            name: ("tokens/sec/user", np.where(np.isfinite(values), values, np.nan))
            for name, values in rates.items()
        },
    }


def _second(calls: Calls) -> Float64:
    """Return the time from the first piece to the second."""
    gap_ms = np.full(len(calls), np.nan)
    of, gaps = calls.pieces.gaps()
    gap_ms[of[::-1]] = 1e3 * gaps[::-1]
    return gap_ms


def summary(calls: Calls, observed_s: float) -> dict[str, Metric]:
    """Return every metric of a summary; rates are over the observed time."""
    done = calls.done
    of, gaps = calls.pieces.gaps()
    values: dict[str, tuple[str, NDArray[Any]]] = {
        name: (unit, each[done & np.isfinite(each)]) for name, (unit, each) in per_request(calls).items()
    }
    values["inter_chunk_latency"] = ("ms", 1e3 * gaps[done[of]])
    prompt, output = int(calls.prompt_tokens[done].sum()), int(calls.output_tokens[done].sum())
    count, all_ = int(done.sum()), len(calls)
    totals: dict[str, tuple[str, float]] = {
        "request_throughput": ("requests/sec", count / observed_s),
        "request_count": ("requests", count),
        "completed_request_count": ("requests", all_),
        "output_token_throughput": ("tokens/sec", output / observed_s),
        "input_token_throughput": ("tokens/sec", prompt / observed_s),
        "total_token_throughput": ("tokens/sec", (prompt + output) / observed_s),
        "total_output_tokens": ("tokens", output),
        "total_osl": ("tokens", output),
        "total_isl": ("tokens", prompt),
        "benchmark_duration": (
            "sec",
            float(np.nanmax(calls.last_s, initial=0.0)) - float(calls.sent_s.min()),
        ),
        "request_error_rate": ("%", 100.0 * (all_ - count) / all_),
    }
    if count < all_:
        totals["error_request_count"] = ("requests", all_ - count)
    rates: dict[str, Metric] = {
        name: {"unit": unit, "avg": float(value)} for name, (unit, value) in totals.items()
    }
    return rates | {name: _distribution(unit, some) for name, (unit, some) in values.items() if len(some)}


def _distribution(unit: str, values: NDArray[Any]) -> Metric:
    points = zip(POINTS, np.percentile(values, POINTS), strict=True)
    return {
        "unit": unit,
        "avg": float(values.mean()),
        **{f"p{point}": float(value) for point, value in points},
        "min": float(values.min()),
        "max": float(values.max()),
        "std": float(values.std()),
        "count": len(values),
        "sum": float(values.sum()),
    }
