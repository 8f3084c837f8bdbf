"""Writer of a Run as aiperf's folder of artifacts."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import numpy as np

from laminabench.interchange.aiperf import RECORDS, SUMMARY, per_request, summary
from laminabench.interchange.benchmark import Table
from laminabench.interchange.calls import Calls
from laminabench.interchange.run_info import RunInfo
from laminabench.runs.status import UNFINISHED

# The version whose format is written.
VERSION, SCHEMA = "0.13.0", "1.4"
_NS = 1_000_000_000


def export(calls: Calls, info: RunInfo) -> dict[str, list[Table]]:
    """Return the files, each as a list of its lines."""
    return {RECORDS: _records(calls, info), SUMMARY: [_summary(calls, info)]}


def _summary(calls: Calls, info: RunInfo) -> Table:
    began = datetime.fromtimestamp(info.began_at_s, UTC).replace(tzinfo=None)
    ended = datetime.fromtimestamp(info.began_at_s + info.duration_s, UTC).replace(tzinfo=None)
    closed = {"type": "concurrency", "concurrency": info.concurrency}
    open_ = (
        {"type": "fixed_schedule"}
        if info.mode == "open"
        else {"type": "concurrency", "concurrency": len(calls)}
    )
    return {
        "schema_version": SCHEMA,
        "aiperf_version": VERSION,
        "benchmark_id": f"{info.mark}-{info.name}" if info.mark else info.name,
        **summary(calls, info.duration_s),
        "input_config": {
            "models": {"items": [{"name": info.model}]},
            "endpoint": {"urls": [info.url], "type": "completions", "streaming": True},
            "datasets": [
                {"name": "main", "type": "synthetic", "entries": len(calls), "prompts": _lengths(calls)}
            ],
            "phases": [
                {
                    "name": "profiling",
                    "kind": "profiling",
                    "requests": len(calls),
                    **(closed if info.mode == "closed" else open_),
                }
            ],
            "artifacts": {"dir": "."},
        },
        "run_info": {
            "benchmark_id": info.name,
            "trial": 0,
            "run_label": info.label,
            "cli_command": info.command,
        },
        "was_cancelled": info.manifest.partial is not None,
        "is_complete": info.manifest.partial is None,
        "error_summary": _errors(calls),
        "start_time": began.isoformat(),
        "end_time": ended.isoformat(),
        **info.marks,
    }


def _lengths(calls: Calls) -> Table:
    """Return prompt and output lengths in the form of aiperf's configuration."""
    columns = {"isl": calls.prompt_tokens, "osl": calls.output_tokens}
    return {
        name: {"mean": max(1.0, float(column.mean())), "stddev": float(column.std())}
        for name, column in columns.items()
    }


def _errors(calls: Calls) -> list[Table]:
    """Count the errors."""
    failed = Counter(
        (str(error) or "unfinished", int(code))
        for error, code, done in zip(calls.error, calls.status_code, calls.done, strict=True)
        if not done
    )
    return [{"error_details": _error(*each, False), "count": count} for each, count in failed.items()]


def _error(why: str, code: int, cancelled: bool) -> Table:
    known = {"code": code} if code >= 0 else {}
    return {**known, "type": "RequestCancellationError" if cancelled else "RequestError", "message": why}


def _records(calls: Calls, info: RunInfo) -> list[Table]:
    of, gaps = calls.pieces.gaps()
    bounds = np.searchsorted(of, np.arange(len(calls) + 1))
    columns = per_request(calls)
    lines = []
    for row in range(len(calls)):
        done, stopped = bool(calls.done[row]), bool(calls.status[row] == UNFINISHED)
        metrics: Table = {}
        if done:
            metrics = {
                name: {
                    "value": float(values[row]) if "/" in unit or unit == "ms" else int(values[row]),
                    "unit": unit,
                }
                for name, (unit, values) in columns.items()
                if np.isfinite(values[row])
            }
            if bounds[row] < bounds[row + 1]:
                between = 1e3 * gaps[bounds[row] : bounds[row + 1]]
                metrics["inter_chunk_latency"] = {"value": between.tolist(), "unit": "ms"}
            for name, counted in (
                ("usage_prompt_tokens", calls.prompt_counted),
                ("usage_completion_tokens", calls.completion_counted),
            ):
                if counted[row] >= 0:
                    metrics[name] = {"value": int(counted[row]), "unit": "tokens"}
        else:
            metrics = {"error_isl": {"value": int(calls.prompt_tokens[row]), "unit": "tokens"}}
        line: Table = {"metadata": _metadata(calls, row, info, stopped), "metrics": metrics}
        if not done:
            why = str(calls.error[row]) or "unfinished"
            line["error"] = _error(why, int(calls.status_code[row]), stopped)
        lines.append(line)
    return lines


def _metadata(calls: Calls, row: int, info: RunInfo, stopped: bool) -> Table:
    # Seconds and fraction are separate: a double cannot represent nanoseconds of Unix time.
    second, part = divmod(info.began_at_s, 1.0)

    def ns(at_s: float) -> int:
        return int(second) * _NS + round((part + at_s) * _NS)

    ended_s = float(calls.last_s[row])
    headers_s = float(calls.headers_s[row])
    worker = f"laminabench-{info.mark.lower()}" if info.mark else "laminabench"
    return {
        "session_num": row,
        "conversation_id": f"session_{row:06d}",
        "turn_index": 0,
        "request_start_ns": ns(float(calls.sent_s[row])),
        **({"request_ack_ns": ns(headers_s)} if np.isfinite(headers_s) else {}),
        "request_end_ns": ns(ended_s if np.isfinite(ended_s) else float(calls.sent_s[row])),
        "worker_id": worker,
        "record_processor_id": worker,
        "benchmark_phase": "profiling",
        "was_cancelled": stopped,
    }
