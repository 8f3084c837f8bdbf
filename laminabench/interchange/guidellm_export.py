"""Writer of a Run as guidellm's report."""

from __future__ import annotations

from typing import Any

import numpy as np

from laminabench.interchange.benchmark import Table
from laminabench.interchange.calls import Calls
from laminabench.interchange.guidellm import of_values, request_totals, summary
from laminabench.interchange.run_info import RunInfo
from laminabench.runs.status import DONE, UNFINISHED

# The version whose format is written.
VERSION, SCHEMA = "0.8.1", 2


def export(calls: Calls, info: RunInfo) -> dict[str, list[Table]]:
    """Return the files, each as a list of its lines."""
    rows: dict[str, list[Table]] = {"successful": [], "errored": [], "incomplete": []}
    for row in range(len(calls)):
        rows[_end(calls, row)].append(_request(calls, row, info))
    metrics, totals = summary(calls, info.duration_s), request_totals(calls)
    labels = {"name": info.label, **info.marks}
    benchmark = {
        "type_": "generative_benchmark",
        "config": _config(calls, info),
        "scheduler_state": _state(calls, info, totals),
        "scheduler_metrics": _clock(info, totals),
        "metrics": metrics,
        "requests": {**rows, "total": None},
        "warnings": [],
        "start_time": info.began_at_s,
        "end_time": info.began_at_s + info.duration_s,
        "duration": info.duration_s,
        "warmup_duration": 0.0,
        "cooldown_duration": 0.0,
    }
    report = {
        "metadata": {
            "version": SCHEMA,
            "guidellm_version": VERSION,
            "python_version": info.manifest.host.python or "unknown",
            "platform": info.mark or info.manifest.host.platform or "unknown",
        },
        "config": {
            "metadata": {"labels": labels},
            "spec": {
                "backend": {"kind": "openai_http", "target": info.url, "model": info.model},
                "profile": _profile(calls, info),
                "data": [_data(calls)],
            },
            "benchmarks": [None],
        },
        "benchmarks": [benchmark],
        "conclusions": [],
    }
    return {".json": [report]}


def _profile(calls: Calls, info: RunInfo) -> Table:
    if info.mode == "open":
        return {"kind": "constant", "rate": [_rate(calls)]}
    return {"kind": "concurrent", "streams": [_places(calls, info)]}


def _places(calls: Calls, info: RunInfo) -> int:
    return info.concurrency or len(calls)


def _rate(calls: Calls) -> float:
    """Return requests a second, as they were sent."""
    return max(1e-9, (len(calls) - 1) / max(float(calls.sent_s[-1]), 1e-9))


def _data(calls: Calls) -> Table:
    mean = {name: max(1, round(float(column.mean()))) for name, column in _lengths(calls).items()}
    return {"kind": "synthetic_text", **mean}


def _lengths(calls: Calls) -> Table:
    return {"prompt_tokens": calls.prompt_tokens, "output_tokens": calls.output_tokens}


def _config(calls: Calls, info: RunInfo) -> Table:
    places = _places(calls, info)
    of_mode: dict[str, Table] = {"open": {"rate": _rate(calls)}, "closed": {"streams": places}}
    most = len(calls) if info.mode == "open" else places
    strategy = {"type_": _strategy(info), "worker_count": 1, "max_concurrency": most}
    return {
        "id_": info.name,
        "run_id": info.label,
        "run_index": 0,
        "strategy": strategy | of_mode.get(info.mode, {}),
        "constraints": {"max_requests": {"count": len(calls)}},
        "confidence": None,
        "profile": _profile(calls, info),
        "requests": dict(info.marks),
        "backend": {"kind": "openai_http", "target": info.url, "model": info.model},
        "environment": dict(info.marks),
    }


def _strategy(info: RunInfo) -> str:
    return {"open": "constant", "closed": "concurrent"}.get(info.mode, "throughput")


def _state(calls: Calls, info: RunInfo, totals: dict[str, int]) -> Table:
    return {
        "node_id": 0,
        "num_processes": 1,
        "start_time": info.began_at_s,
        "end_time": info.began_at_s + info.duration_s,
        "created_requests": len(calls),
        "processed_requests": len(calls),
        "successful_requests": totals["successful"],
        "errored_requests": totals["errored"],
        "cancelled_requests": totals["incomplete"],
    }


def _clock(info: RunInfo, totals: dict[str, int]) -> Table:
    """Return when it began and ended; guidellm's internal delays are 0."""
    began, ended = info.began_at_s, info.began_at_s + info.duration_s
    delays = (
        "queued_time_avg",
        "resolve_start_delay_avg",
        "resolve_targeted_start_delay_avg",
        "request_start_delay_avg",
        "request_targeted_start_delay_avg",
        "request_time_avg",
        "resolve_end_delay_avg",
        "resolve_time_avg",
        "finalized_delay_avg",
        "processed_delay_avg",
    )
    return {
        **dict.fromkeys(("start_time", "request_start_time", "measure_start_time"), began),
        **dict.fromkeys(("measure_end_time", "request_end_time", "end_time"), ended),
        "requests_made": totals,
        "generation_delay": of_values(np.zeros(0)),
        **dict.fromkeys(delays, 0.0),
        "dataset_incomplete": False,
        "strategy_type": _strategy(info),
    }


def _end(calls: Calls, row: int) -> str:
    return {DONE: "successful", UNFINISHED: "incomplete"}.get(int(calls.status[row]), "errored")


_STATUS = {"successful": "completed", "incomplete": "cancelled", "errored": "errored"}
_USAGE: Table = {
    **dict.fromkeys(("cached_tokens", "text_words", "text_characters")),
    **dict.fromkeys(("image_tokens", "image_count", "image_pixels", "image_bytes")),
    **dict.fromkeys(("video_tokens", "video_frames", "video_seconds", "video_bytes")),
    **dict.fromkeys(("audio_tokens", "audio_samples", "audio_seconds", "audio_bytes")),
    **dict.fromkeys(("tool_call_tokens", "mixed_content_tool_tokens", "tool_call_count")),
}


def _usage(tokens: int) -> Table:
    return {"text_tokens": tokens, **_USAGE, "total_tokens": tokens}


def _request(calls: Calls, row: int, info: RunInfo) -> Table:
    began = info.began_at_s
    sent, due = began + float(calls.sent_s[row]), float(calls.due_s[row])
    first, last = _moment(calls.first_s[row], began), _moment(calls.last_s[row], began)
    ended = sent if last is None else last
    count = int(np.searchsorted(calls.pieces.request, row + 1) - np.searchsorted(calls.pieces.request, row))
    prompt, output = int(calls.prompt_tokens[row]), int(calls.output_tokens[row])
    name, end = f"{info.name}-{row}", _end(calls, row)
    timings = {
        "targeted_start": sent if np.isnan(due) else began + due,
        **dict.fromkeys(("queued", "dequeued", "scheduled_at", "resolve_start", "request_start"), sent),
        **dict.fromkeys(
            ("first_request_iteration", "first_token_iteration", "first_output_token_iteration"), first
        ),
        **dict.fromkeys(("last_token_iteration", "last_request_iteration"), last),
        **dict.fromkeys(("request_iterations", "token_iterations"), count),
        **dict.fromkeys(("request_end", "resolve_end", "finalized"), ended),
    }
    return {
        "type_": "generative_request_stats",
        "request_id": name,
        "info": {
            "request_id": name,
            "status": _STATUS[end],
            "scheduler_start_time": began,
            "timings": timings,
            "error": (str(calls.error[row]) or None) if end != "successful" else None,
            "started_at": sent,
            "completed_at": ended,
        },
        "input_metrics": _usage(prompt),
        "output_metrics": _usage(output),
        **_derived(sent, first, last, prompt, output),
    }


def _moment(at_s: Any, began: float) -> float | None:
    return float(began + at_s) if np.isfinite(at_s) else None


def _derived(sent: float, first: float | None, last: float | None, prompt: int, output: int) -> Table:
    """Return the numbers that guidellm derives from a request."""
    ended = sent if last is None else last
    latency = ended - sent
    waited = None if first is None else 1e3 * (first - sent)
    between = None if first is None or last is None or output < 2 else 1e3 * (last - first) / (output - 1)
    return {
        "request_start_time": sent,
        "request_end_time": ended,
        "request_latency": latency,
        "prompt_tokens": prompt,
        "cached_tokens": None,
        "output_tokens": output,
        "total_tokens": prompt + output,
        "time_to_first_token_ms": waited,
        "time_to_first_output_token_ms": waited,
        "time_per_output_token_ms": 1e3 * latency / output if output else None,
        "inter_token_latency_ms": between,
        "tokens_per_second": (prompt + output) / latency if latency else None,
        "output_tokens_per_second": output / latency if latency else None,
    }
