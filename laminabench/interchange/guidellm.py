"""guidellm's report, benchmarks.json: a list of benchmarks, each with its requests by how they ended.

It has the times of an answer's first and last piece and their number. guidellm assumes that those between
arrived evenly, and so does this reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.interchange.benchmark import (
    DAMAGE,
    Benchmark,
    Table,
    count,
    last_line,
    marks_in,
    moment,
    read_json,
    read_text,
    unlike,
)
from laminabench.interchange.calls import Calls, calls_in
from laminabench.runs.status import DONE, FAILED, UNFINISHED
from laminabench.sim.spec import Float64, Mode
from laminabench.util.errors import UserError
from laminabench.util.json import Json

NAME = "guidellm"
# The status of a list's requests.
_ENDS = {"successful": DONE, "errored": FAILED, "incomplete": UNFINISHED}
# Strategies with a fixed number of concurrent requests, and with all at once.
_CLOSED, _AT_ONCE = ("concurrent", "synchronous"), ("throughput",)
EVEN = (
    "guidellm keeps when the first and the last token of an answer came, and not when those between did: "
    "they are split evenly, so TBT and ITL are means of a request here, and stalls are not visible"
)


def is_like(document: Any) -> bool:
    """Return whether a document is a report of guidellm."""
    return (
        isinstance(document, dict) and isinstance(document.get("benchmarks"), list) and "metadata" in document
    )


def read(path: Path) -> Iterator[Benchmark]:
    """Read every benchmark of a report."""
    path = path / "benchmarks.json" if path.is_dir() else path
    document = read_json(read_text(path), str(path))
    if not is_like(document) or not document["benchmarks"]:
        raise unlike(path, NAME, "it has no benchmarks")
    for number, benchmark in enumerate(document["benchmarks"], 1):
        try:
            where = f"{path}, benchmark {number}"
            yield _benchmark(benchmark, document, number if len(document["benchmarks"]) > 1 else 0, where)
        except DAMAGE as error:
            raise unlike(path, NAME, repr(error)) from error


def _benchmark(benchmark: Table, document: Table, number: int, where: str) -> Benchmark:
    config, clock, metrics = (benchmark[name] for name in ("config", "scheduler_metrics", "metrics"))
    lists = {name: benchmark["requests"].get(name) or [] for name in _ENDS}
    for name, some in lists.items():
        if len(some) < (made := metrics["request_totals"][name]):
            raise UserError(
                "import-sampled",
                f"{where} has {len(some):,} of its {made:,} {name} requests: run guidellm without "
                "sample_size (of --metrics), which keeps only some of them",
            )
    strategy = config["strategy"]
    calls, began_at_s = _calls(lists, scheduled=strategy["type_"] not in (*_CLOSED, *_AT_ONCE))
    complete = (
        clock["measure_start_time"] <= began_at_s and clock["measure_end_time"] >= clock["request_end_time"]
    )
    duration_s = moment(clock["request_end_time"], "request_end_time") - began_at_s
    mode, concurrency = _load(strategy)
    labels = ((document.get("config") or {}).get("metadata") or {}).get("labels") or {}
    numbers = flat(summary(calls, duration_s))
    stated = flat(metrics)
    notes = [] if len(calls.pieces.at_s) == len(calls) else [EVEN]
    if not complete:
        notes.append(
            f"the summary of {where} leaves out warm-up and cool-down, so its requests cannot check it"
        )
    return Benchmark(
        tool=NAME,
        version=str(document["metadata"].get("guidellm_version") or ""),
        calls=calls,
        model=str(config["backend"].get("model") or ""),
        mode=mode,
        concurrency=concurrency,
        duration_s=duration_s,
        stated=stated,
        recounted=numbers if complete else {},
        url=str(config["backend"].get("target") or ""),
        began_at_s=began_at_s,
        platform=document["metadata"].get("platform"),
        part=f"{number}-{strategy['type_']}" if number else "",
        more={
            "strategy": {
                name: value
                for name, value in strategy.items()
                if isinstance(value, str | int | float) and value
            },
            "labels": labels,
        },
        notes=notes,
        marks=marks_in(labels),
    )


# Distributions that are compared with the requests. Latency is left out: guidellm's ends with the answer's
# last byte, a Run's with its last token.
_COMPARED = (
    "time_to_first_token_ms",
    "inter_token_latency_ms",
    "prompt_token_count",
    "output_token_count",
)


def flat(metrics: Table) -> dict[str, float]:
    """Return numbers of requests that were answered completely, by name."""
    numbers: dict[str, float] = {}
    for name in _COMPARED:
        each = metrics[name]["successful"]
        points = {"mean": each["mean"], "p50": each["percentiles"]["p50"], "p99": each["percentiles"]["p99"]}
        numbers |= {f"{name} {key}": float(value) for key, value in points.items()}
    rates = metrics["output_tokens_per_second"]["successful"]["mean"]
    counts = {f"request_totals {name}": float(metrics["request_totals"][name]) for name in STATUSES}
    return numbers | counts | {"output_tokens_per_second mean": float(rates)}


def _load(strategy: Table) -> tuple[Mode, int | None]:
    """Return how requests were offered."""
    kind = strategy["type_"]
    if kind in _CLOSED:
        return "closed", count(strategy.get("streams") or 1, "streams")
    return ("saturate" if kind in _AT_ONCE else "open"), None


def _calls(lists: dict[str, list[Table]], *, scheduled: bool) -> tuple[Calls, float]:
    """Return all requests that were sent, and when the first one was, by the Unix clock."""
    rows = [(row, _ENDS[name]) for name, some in lists.items() for row in some if _sent(row) is not None]
    if not rows:
        raise ValueError("no request was sent")
    rows.sort(key=lambda each: _sent(each[0]) or 0.0)
    times = [row["info"]["timings"] for row, _ in rows]
    sent = np.array([_sent(row) for row, _ in rows], np.float64)
    began = float(sent[0])
    answers, even = [], []
    for (row, _), clock in zip(rows, times, strict=True):
        first, chunks = clock["first_token_iteration"], count(clock["token_iterations"], "token_iterations")
        if first is None or not chunks:
            answers.append((np.zeros(0), 0))
            even.append(False)
            continue
        tokens = row.get("output_tokens")
        tokens = chunks if tokens is None else count(tokens, "output_tokens")
        last = clock["last_token_iteration"] if chunks > 1 else first
        begin, end = (moment(each, "token_iteration") for each in (first, last))
        answers.append((np.linspace(begin, end, chunks) - began, tokens))
        even.append(chunks > 2 or tokens != chunks)
    calls = calls_in(
        sent - began,
        answers,
        **({"due_s": _moments(times, "targeted_start", began)} if scheduled else {}),
        first_s=_moments(times, "first_token_iteration", began),
        last_s=_moments(times, "last_token_iteration", began),
        prompt_tokens=np.array(
            [count(row.get("prompt_tokens") or 0, "prompt_tokens") for row, _ in rows], np.int32
        ),
        status=np.array([end for _, end in rows], np.int8),
        even=np.array(even, np.bool_),
        error=np.array([last_line(row["info"].get("error") or "") for row, _ in rows], object),
    )
    return calls, began


def _sent(row: Table) -> float | None:
    at_s = row["info"]["timings"].get("request_start")
    return None if at_s is None else float(moment(at_s, "request_start"))


def _moments(times: list[Table], name: str, began: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(
        [np.nan if clock.get(name) is None else moment(clock[name], name) - began for clock in times],
        np.float64,
    )


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
