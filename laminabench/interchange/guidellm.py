"""guidellm's report, benchmarks.json: a list of benchmarks, each with its requests by how they ended.

It has the times of an answer's first and last piece and their number. guidellm assumes that those between
arrived evenly, and so does this reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

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
from laminabench.interchange.calls import Calls, pieces_of
from laminabench.interchange.guidellm_numbers import STATUSES, summary
from laminabench.runs.status import DONE, FAILED, UNFINISHED
from laminabench.sim.spec import Mode
from laminabench.systems.live.endpoint.sse import split_evenly
from laminabench.util.errors import UserError

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
    made, even = [], []
    for (row, _), clock in zip(rows, times, strict=True):
        first, chunks = clock["first_token_iteration"], count(clock["token_iterations"], "token_iterations")
        if first is None or not chunks:
            made.append((np.zeros(0), np.zeros(0, np.int64)))
            even.append(False)
            continue
        tokens = row.get("output_tokens")
        tokens = chunks if tokens is None else count(tokens, "output_tokens")
        last = clock["last_token_iteration"] if chunks > 1 else first
        begin, end = (moment(each, "token_iteration") for each in (first, last))
        at_s = np.linspace(begin, end, chunks) - began
        made.append((at_s, np.array(split_evenly(tokens, chunks), np.int64)))
        even.append(chunks > 2 or tokens != chunks)
    pieces = pieces_of(made)
    size = len(rows)
    calls = Calls(
        sent_s=sent - began,
        due_s=_moments(times, "targeted_start", began) if scheduled else np.full(size, np.nan),
        headers_s=np.full(size, np.nan),
        first_s=_moments(times, "first_token_iteration", began),
        last_s=_moments(times, "last_token_iteration", began),
        prompt_tokens=np.array(
            [count(row.get("prompt_tokens") or 0, "prompt_tokens") for row, _ in rows], np.int32
        ),
        output_tokens=np.bincount(pieces.request, pieces.tokens, size).astype(np.int32),
        # Counted by the server or by guidellm's tokenizer: the file does not say which.
        prompt_counted=np.full(size, -1, np.int64),
        completion_counted=np.full(size, -1, np.int64),
        status_code=np.full(size, -1, np.int32),
        status=np.array([end for _, end in rows], np.int8),
        even=np.array(even, np.bool_),
        error=np.array([last_line(row["info"].get("error") or "") for row, _ in rows], object),
        pieces=pieces,
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
