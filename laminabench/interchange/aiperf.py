"""Reader of aiperf's artifacts: a line of JSON for each request, and a summary, in one folder.

Numbers of a summary are recomputed by aiperf's names and definitions, over requests answered completely.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
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
    seconds,
    unlike,
)
from laminabench.interchange.calls import Calls, calls_in
from laminabench.runs.status import DONE, FAILED, UNFINISHED
from laminabench.sim.spec import Float64, Mode
from laminabench.util.errors import UserError

NAME = "aiperf"
RECORDS, SUMMARY = "profile_export.jsonl", "profile_export_aiperf.json"
_NS, _MS = 1e-9, 1e-3
# The kind of a phase with a fixed number under way; all others have times at which requests are due.
_CLOSED = "concurrency"


def is_like(document: Any) -> bool:
    """Return whether a document is a summary or a request of aiperf."""
    if not isinstance(document, dict):
        return False
    return "aiperf_version" in document or {"metadata", "metrics"} <= document.keys()


def read(path: Path) -> Iterator[Benchmark]:
    """Read the requests of a folder of artifacts; either of its files may be named."""
    folder = path if path.is_dir() else path.parent
    records = path if path.suffix == ".jsonl" else folder / RECORDS
    if not records.is_file():
        raise UserError(
            "import-aggregates-only",
            f"there is no {records.name} in {folder}, and the summary has only sums: keep aiperf's whole "
            "folder of artifacts, and run it with --export-level records",
        )
    summary_path = path if path.suffix == ".json" and path.is_file() else folder / SUMMARY
    stated: Table = read_json(read_text(summary_path), str(summary_path)) if summary_path.is_file() else {}
    rows = [read_json(line, f"{records}, line {number}") for number, line in enumerate(_lines(records), 1)]
    try:
        yield _benchmark(rows, stated)
    except DAMAGE as error:
        raise unlike(records, NAME, repr(error)) from error


def _lines(path: Path) -> list[str]:
    return [line for line in read_text(path).splitlines() if line.strip()]


def _benchmark(rows: list[Table], document: Table) -> Benchmark:
    # aiperf's own summary leaves these out too.
    rows = [row for row in rows if row["metadata"]["benchmark_phase"] != "warmup" and not _is_skipped(row)]
    if not rows:
        raise ValueError("it has no request")
    rows.sort(key=lambda row: moment(row["metadata"]["request_start_ns"], "request_start_ns", _NS))
    if any(_is_done(row) and "time_to_first_token" not in row["metrics"] for row in rows):
        raise UserError(
            "import-not-streamed",
            "these requests were not streamed, so first tokens are not known: aiperf --streaming",
        )
    calls = _calls(rows)
    config = document.get("input_config") or {}
    duration_s = _observed_s(document)
    numbers = summary(calls, duration_s or calls.end_s)
    statistics = {f"{name} {key}": value for name, each in numbers.items() for key, value in each.items()}
    stated = {
        f"{name} {key}": float(document[name][key])
        for name, each in numbers.items()
        for key in each
        if isinstance((document.get(name) or {}).get(key), int | float)
    }
    mode, concurrency = _load(config)
    models = (config.get("models") or {}).get("items") or [{}]
    return Benchmark(
        tool=NAME,
        version=str(document.get("aiperf_version") or ""),
        calls=calls,
        model=str(models[0].get("name") or ""),
        mode=mode,
        concurrency=concurrency,
        duration_s=duration_s,
        stated=stated,
        recounted={name: value for name, value in statistics.items() if isinstance(value, int | float)},
        url=str(((config.get("endpoint") or {}).get("urls") or [""])[0]),
        began_at_s=rows[0]["metadata"]["request_start_ns"] * _NS,
        partial="the benchmark was cancelled" if document.get("was_cancelled") else "",
        more={name: document[name] for name in ("benchmark_id", "schema_version") if document.get(name)},
        marks=marks_in(document),
    )


def _load(config: Table) -> tuple[Mode, int | None]:
    """Return how requests were offered."""
    phases = [phase for phase in config.get("phases") or [] if phase.get("kind") != "warmup"]
    phase = phases[-1] if phases else {}
    if phase.get("type") == _CLOSED and phase.get("concurrency"):
        return "closed", count(phase["concurrency"], "concurrency")
    return "open", None


def _calls(rows: list[Table]) -> Calls:
    began = rows[0]["metadata"]["request_start_ns"]
    sent_s = np.array([(row["metadata"]["request_start_ns"] - began) * _NS for row in rows])
    answers, even = [], []
    for at_s, row in zip(sent_s, rows, strict=True):
        metrics = row["metrics"]
        first, gaps = _value(metrics, "time_to_first_token"), _value(metrics, "inter_chunk_latency")
        # No gaps: there was one piece, or they were not recorded and the latency gives the last piece.
        if (
            gaps is None
            and first is not None
            and (latency := _value(metrics, "request_latency")) not in (None, first)
        ):
            gaps = [latency - first]
        waits = [] if first is None else [seconds(first, "time_to_first_token", _MS)]
        waits += [seconds(gap, "inter_chunk_latency", _MS) for gap in gaps or [] if waits]
        times = at_s + np.cumsum(waits)
        made = count(_value(metrics, "output_sequence_length") or len(times), "output_sequence_length")
        answers.append((times, made))
        even.append(len(times) > 0 and made != len(times))
    # A credit's time is internal to the client: it is not the time that a trace requested.
    return calls_in(
        sent_s,
        answers,
        headers_s=np.array([_since(began, row["metadata"].get("request_ack_ns")) for row in rows]),
        prompt_tokens=_integers(rows, "input_sequence_length", 0, "error_isl").astype(np.int32),
        prompt_counted=_integers(rows, "usage_prompt_tokens", -1),
        completion_counted=_integers(rows, "usage_completion_tokens", -1),
        status_code=np.array([_code(row) for row in rows], np.int32),
        status=np.array([_status(row) for row in rows], np.int8),
        even=np.array(even, np.bool_),
        error=np.array([_why(row) for row in rows], object),
    )


def _is_skipped(row: Table) -> bool:
    return bool(row["metadata"].get("context_overflow_skip"))


def _is_done(row: Table) -> bool:
    return not row.get("error") and not row["metadata"].get("was_cancelled")


def _status(row: Table) -> int:
    if _is_done(row):
        return DONE
    # The client itself stopped it.
    return UNFINISHED if row["metadata"].get("was_cancelled") else FAILED


def _why(row: Table) -> str:
    return last_line((row.get("error") or {}).get("message", ""))


def _code(row: Table) -> int:
    """Return the status of an error; 499 is aiperf's own."""
    code = (row.get("error") or {}).get("code")
    return -1 if code is None or row["metadata"].get("was_cancelled") else int(code)


def _integers(
    rows: list[Table], name: str, unknown: int, otherwise: str = ""
) -> np.ndarray[Any, np.dtype[np.int64]]:
    values = [_value(row["metrics"], name) for row in rows]
    if otherwise:
        values = [
            _value(row["metrics"], otherwise) if each is None else each
            for each, row in zip(values, rows, strict=True)
        ]
    return np.array([unknown if each is None else count(each, name) for each in values], np.int64)


def _since(began: int, at_ns: int | None) -> float:
    return float("nan") if at_ns is None else (moment(at_ns, "request_ack_ns", _NS) - began) * _NS


def _value(metrics: Table, name: str) -> Any:
    return (metrics.get(name) or {}).get("value")


def _observed_s(document: Table) -> float | None:
    """Return the span that aiperf's rates are over: the load's begin to its end, not benchmark_duration."""
    began, ended = document.get("start_time"), document.get("end_time")
    if began is None or ended is None:
        return None
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds() or None


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
