"""`vllm bench serve --save-result --save-detailed`: one object, with a list for each fact of a request."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from laminabench.interchange.benchmark import (
    DAMAGE,
    MARK,
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
from laminabench.interchange.run_info import RunInfo
from laminabench.runs.status import DONE, FAILED
from laminabench.sim.spec import Float64, Mode
from laminabench.util.errors import UserError

NAME = "vllm-bench"
_TOOL = "vllm bench serve"
_LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
POINTS = (50, 90, 95, 99)


def is_like(document: Any) -> bool:
    """Return whether a document has the keys that only this tool's results have together."""
    return (
        isinstance(document, dict) and {"total_output_tokens", "model_id", "request_rate"} <= document.keys()
    )


def documents(path: Path) -> list[Table]:
    """Return all results of a file: --append-result writes one a line."""
    text = read_text(path)
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and all(line.startswith("{") and line.endswith("}") for line in lines):
        return [read_json(line, f"{path}, result {number}") for number, line in enumerate(lines, 1)]
    return [read_json(text, str(path))]


def read(path: Path) -> Iterator[Benchmark]:
    """Read every result of a file."""
    all_ = documents(path)
    for number, document in enumerate(all_, 1):
        where = str(path) if len(all_) == 1 else f"{path}, result {number}"
        if not is_like(document):
            raise unlike(where, _TOOL, "it has no total_output_tokens, model_id and request_rate")
        _require_detail(document, where)
        try:
            yield _benchmark(document, f"result {number}" if len(all_) > 1 else "")
        except DAMAGE as error:
            raise unlike(where, _TOOL, repr(error)) from error


def _require_detail(document: Table, where: str) -> None:
    missing = [name for name in _LISTS if not isinstance(document.get(name), list)]
    if missing == ["start_times"]:
        raise UserError(
            "import-no-start-times",
            f"{where} does not say when requests were sent (start_times), as newer versions of vLLM do; "
            "run it with one",
        )
    if missing:
        raise UserError(
            "import-aggregates-only",
            f"{where} has no requests, only sums ({', '.join(missing)} missing): run `vllm bench serve` with "
            "--save-result --save-detailed",
        )


def _benchmark(document: Table, part: str) -> Benchmark:
    calls = _calls(document)
    rate, places = document["request_rate"], document.get("max_concurrency")
    mode: Mode = "open" if rate != "inf" else "closed" if places else "saturate"
    duration_s = seconds(document["duration"], "duration")
    numbers = summary(calls, duration_s)
    stated = {name: float(document[name]) for name in numbers if isinstance(document.get(name), int | float)}
    began = [float(each) for each in document["start_times"] if each]
    return Benchmark(
        tool=_TOOL,
        version=str(document.get("vllm_version") or ""),
        calls=calls,
        model=str(document["model_id"]),
        mode=mode,
        # With a rate it is only a limit.
        concurrency=count(places, "max_concurrency") if places and mode == "closed" else None,
        duration_s=duration_s,
        stated=stated,
        recounted=numbers,
        part=part,
        more={
            name: document[name]
            for name in ("date", "backend", "label", "request_rate", "burstiness", "max_concurrency")
            if document.get(name) is not None
        }
        | {"first_start_time": min(began, default=None), **_metadata(document)},
        marks=marks_in(document),
    )


def _metadata(document: Table) -> Table:
    """Return texts that the user added with --metadata."""
    known = {"date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "request_rate"}
    added = {
        name: value
        for name, value in document.items()
        if isinstance(value, str) and name not in known and not name.startswith(MARK)
    }
    return {"metadata": added} if added else {}


def _calls(document: Table) -> Calls:
    columns = {name: document[name] for name in _LISTS}
    if len({len(column) for column in columns.values()}) != 1 or not columns["ttfts"]:
        raise ValueError("its lists are not of one length, or empty")
    # A request that was never sent has no start time.
    rows = [row for row in range(len(columns["ttfts"])) if columns["start_times"][row]]
    rows.sort(key=lambda row: moment(columns["start_times"][row], "start_times"))
    if not rows:
        raise ValueError("no request was sent")
    picked = {name: [column[row] for row in rows] for name, column in columns.items()}
    sent = np.array(picked["start_times"], np.float64)
    sent_s = sent - sent[0]
    answers, even = [], []
    for at_s, ttft, itl, tokens, error in zip(
        sent_s, picked["ttfts"], picked["itls"], picked["output_lens"], picked["errors"], strict=True
    ):
        waits = [seconds(ttft, "ttfts"), *(seconds(gap, "itls") for gap in itl)] if ttft else []
        times = at_s + np.cumsum(waits)
        # Tokens of a failed request are not counted: at least one a piece.
        made = len(times) if error else count(tokens, "output_lens")
        answers.append((times, made))
        even.append(made != len(times) or bool(error and made))
    return calls_in(
        sent_s,
        answers,
        prompt_tokens=np.array([count(tokens, "input_lens") for tokens in picked["input_lens"]], np.int32),
        status=np.array([FAILED if error else DONE for error in picked["errors"]], np.int8),
        even=np.array(even, np.bool_),
        error=np.array([last_line(error) for error in picked["errors"]], object),
    )


def summary(calls: Calls, duration_s: float) -> dict[str, float]:
    """Return a result's numbers by vLLM's names and definitions, over requests answered completely."""
    done = calls.done
    of, gaps = calls.pieces.gaps()
    per_token = calls.per_token_s()[done]
    prompt, output = int(calls.prompt_tokens[done].sum()), int(calls.output_tokens[done].sum())
    numbers: dict[str, float] = {
        "completed": int(done.sum()),
        "failed": int(len(calls) - done.sum()),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": float(done.sum()) / duration_s,
        "output_throughput": output / duration_s,
        "total_token_throughput": (prompt + output) / duration_s,
    }
    distributions = {
        "ttft": calls.waited_s()[done],
        "tpot": per_token[np.isfinite(per_token)],
        "itl": gaps[done[of]],
        "e2el": calls.spent_s()[done],
    }
    for name, values in distributions.items():
        numbers |= _statistics(name, 1e3 * values)
    return numbers


def _statistics(name: str, values_ms: Float64) -> dict[str, float]:
    values = values_ms if len(values_ms) else np.zeros(1)  # as vLLM does
    points = zip(POINTS, np.percentile(values, POINTS), strict=True)
    return {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
        **{f"p{point}_{name}_ms": float(value) for point, value in points},
    }


def export(calls: Calls, info: RunInfo) -> dict[str, list[Table]]:
    """Return the files, each as a list of its lines."""
    done, came = calls.done, np.isfinite(calls.first_s)
    of, gaps = calls.pieces.gaps()
    bounds = np.searchsorted(of, np.arange(len(calls) + 1))
    backend = f"laminabench-{info.mark.lower()}" if info.mark else "openai"
    began_at_s = info.began_at_s
    document: Table = {
        "date": time.strftime("%Y%m%d-%H%M%S", time.gmtime(began_at_s)),
        "endpoint_type": backend,
        "backend": backend,
        "label": info.label,
        "model_id": info.model,
        "tokenizer_id": info.model,
        "num_prompts": len(calls),
        **info.marks,
        "request_rate": _rate(calls) if info.mode == "open" else "inf",
        "burstiness": None,  # a trace has its own arrivals
        "max_concurrency": info.concurrency if info.mode == "closed" else None,
        "duration": info.duration_s,
    }
    numbers = summary(calls, info.duration_s)
    heads = [name for name in numbers if not name.endswith("_ms")]
    document |= {name: numbers[name] for name in heads}
    document |= {
        "request_goodput": None,
        "input_lens": calls.prompt_tokens.tolist(),
        "output_lens": np.where(done, calls.output_tokens, 0).tolist(),
        "ttfts": np.where(came, calls.waited_s(), 0.0).tolist(),
        "itls": [gaps[first:last].tolist() for first, last in itertools.pairwise(bounds)],
        "latencies": np.where(came, calls.spent_s(), 0.0).tolist(),
        # The clock's origin is arbitrary, but 0 would mean never sent.
        "start_times": (began_at_s + calls.sent_s).tolist(),
        "queue_times": [0.0] * len(calls),
        "generated_texts": [""] * len(calls),
        "errors": [
            str(error) or ("" if fine else "unfinished")
            for error, fine in zip(calls.error, done, strict=True)
        ],
        **_peaks(calls),
        "rtfx": 0.0,
    }
    document |= {name: value for name, value in numbers.items() if name not in heads}
    return {".json": [document]}


def _rate(calls: Calls) -> float | str:
    """Return requests a second, as they were sent."""
    span_s = float(calls.sent_s[-1])
    return (len(calls) - 1) / span_s if span_s > 0 else "inf"


def _peaks(calls: Calls) -> dict[str, float]:
    """Return the most pieces that arrived, and the most requests under way, in one second."""
    done = calls.done
    if not done.any():
        return {"max_output_tokens_per_s": 0.0, "max_concurrent_requests": 0}
    began_s = float(calls.sent_s[done].min())
    seconds = math.ceil(float(calls.last_s[done].max()) - began_s) + 1
    of_done = done[calls.pieces.request]
    tokens = np.bincount((calls.pieces.at_s[of_done] - began_s).astype(np.int64), minlength=seconds)
    change = np.zeros(seconds + 1, np.int64)
    np.add.at(change, (calls.sent_s[done] - began_s).astype(np.int64), 1)
    np.add.at(change, (calls.last_s[done] - began_s).astype(np.int64) + 1, -1)
    return {
        "max_output_tokens_per_s": float(tokens.max()),
        "max_concurrent_requests": int(np.cumsum(change).max()),
    }
