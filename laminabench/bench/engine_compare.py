"""Layouts of the engine, and vLLM, decoding the same load in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lamina.cluster import Machine
from laminabench.bench.engine_contenders import (
    LAYOUTS,
    Contender,
    Load,
    OurContender,
    VllmContender,
    bookkeeping,
)
from laminabench.bench.mini import MODEL
from laminabench.bench.timing import spread

CONTENDERS = (*LAYOUTS, "vllm")
# The targets; a ratio's is for the first's throughput over the second's.
TARGETS = {("rotational", "serial"): 1.25, ("rotational", "vllm"): 1.2}
# Where one of the two takes more than twice the other's time, taking turns cannot give that much.
WITHIN = 2.0
TARGET_BOUNDARY_S = 1e-3
TARGET_BOOKKEEPING_S = 0.5e-3
BOOKKEEPING_REQUESTS = 1000
BOOKKEEPING_ITERATIONS = 40
THREADS = 2


def compare(
    names: Sequence[str],
    load: Load,
    *,
    rounds: int,
    vllm_python: Path | None,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Everybody's turn in every round, so that a noisy moment of the machine falls on all; ready for JSON."""
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    kept: list[float] = []
    with contextlib.ExitStack() as stack:
        machine = stack.enter_context(Machine())
        contenders = [_contender(name, load, machine, vllm_python) for name in names]
        for contender in contenders:
            stack.callback(contender.close)
        books = bookkeeping(BOOKKEEPING_REQUESTS, BOOKKEEPING_ITERATIONS)
        for contender in contenders:
            contender.round()  # touches all memory once
        for round_ in range(rounds):
            progress(round_, rounds)
            for contender in contenders:
                measured[contender.name].append(contender.round())
            kept.append(books())
        progress(rounds, rounds)
    return _report(measured, kept, load, rounds)


def _contender(name: str, load: Load, machine: Machine, vllm_python: Path | None) -> Contender:
    if name == "vllm":
        assert vllm_python is not None
        return VllmContender(load, vllm_python, THREADS)
    return OurContender(name, load, machine)


def _report(
    measured: dict[str, list[dict[str, float]]], kept: list[float], load: Load, rounds: int
) -> dict[str, Any]:
    rows = {name: _row(found, load) for name, found in measured.items()}
    ratios = [_ratio(first, second, measured, rows) for (first, second) in _pairs(list(measured))]
    boundary = rows["serial"].get("boundary_s") if "serial" in rows else None
    books = spread(kept)
    checks = {
        "boundary_met": boundary and boundary["median"] <= TARGET_BOUNDARY_S,
        "bookkeeping_met": books["median"] <= TARGET_BOOKKEEPING_S,
    }
    return {
        "benchmark": "engine-compare",
        "model": MODEL,
        "batch": load.batch,
        "prompt_tokens": load.prompt,
        "output_tokens": load.output,
        "rounds": rounds,
        "contenders": rows,
        "ratios": ratios,
        "boundary_s": boundary,
        "target_boundary_s": TARGET_BOUNDARY_S,
        "bookkeeping_s": books,
        "bookkeeping_requests": BOOKKEEPING_REQUESTS,
        "target_bookkeeping_s": TARGET_BOOKKEEPING_S,
        **checks,
        "met": all(ratio["met"] is not False for ratio in ratios)
        and all(check is not False for check in checks.values()),
    }


def _pairs(names: list[str]) -> list[tuple[str, str]]:
    """Those with a target, and everybody over the first."""
    pairs = [pair for pair in TARGETS if set(pair) <= set(names)]
    others = [(name, names[0]) for name in names[1:]]
    return pairs + [pair for pair in others if pair not in pairs and pair[::-1] not in pairs]


def _row(found: list[dict[str, float]], load: Load) -> dict[str, Any]:
    row: dict[str, Any] = {
        "tokens_per_s": spread([load.tokens / each["seconds"] for each in found]),
        # Of a token of every request, in however many batches.
        "round_s": spread([each["seconds"] / load.output for each in found]),
    }
    for name in ("model_s", "attention_s", "host_s", "boundary_s"):
        if name in found[0]:
            row[name] = spread([each[name] for each in found])
    return row


def _ratio(
    first: str, second: str, measured: dict[str, list[dict[str, float]]], rows: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    ratios = [
        other["seconds"] / one["seconds"]
        for one, other in zip(measured[first], measured[second], strict=True)
    ]
    target, found = TARGETS.get((first, second)), spread(ratios)
    ratio: dict[str, Any] = {"of": first, "over": second, "ratio": found, "target": target}
    balanced = True
    if (first, second) == ("rotational", "serial"):
        times = sorted(rows["serial"][name]["median"] for name in ("model_s", "attention_s"))
        ratio["model_over_attention"] = (
            rows["serial"]["model_s"]["median"] / rows["serial"]["attention_s"]["median"]
        )
        balanced = times[1] <= WITHIN * times[0]
    ratio["judged"] = target is not None and balanced
    ratio["met"] = found["median"] >= target if target is not None and balanced else None
    return ratio
