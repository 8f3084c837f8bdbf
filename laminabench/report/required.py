"""What a page needs a manifest to say: asked once, so that a damaged one is a sentence and not a crash."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Any

from laminabench.errors import UserError
from laminabench.runs.format import MANIFEST
from laminabench.runs.read import Run

Kinds = tuple[type, ...]
_TEXT: Kinds = (str,)
_FACTS: Kinds = (dict,)
_LIST: Kinds = (list,)
_NUMBER: Kinds = (int, float)
_COUNT: Kinds = (int,)
# Of these, what is missing reads as None.
_MAYBE_FACTS: Kinds = (dict, NoneType)
_MAYBE_LIST: Kinds = (list, NoneType)
_MAYBE_NUMBER: Kinds = (int, float, NoneType)
_MAYBE_COUNT: Kinds = (int, NoneType)

# Of a replay that only a client saw.
_SEEN = ("ttft_ms", "itl_ms", "e2e_ms", "lateness_ms", "tokens_per_chunk")
_ATTEMPTS = ("sent", "retried", "failed")

# Whole before its parts; "*" stands for every part.
_NEEDED: tuple[tuple[Kinds, tuple[str, ...]], ...] = (
    (_TEXT, ("command", "system", "backend", "trace.name", "deployment.name", "model.name", "workload.mode")),
    (_FACTS, ("laminabench", "transforms", "host", "summary.tbt_ms", "summary.time_shares")),
    (_FACTS, ("summary.requests", "summary.cost")),
    (_MAYBE_FACTS, ("workload.options",)),
    (_MAYBE_COUNT, ("trace.requests",)),
    (_MAYBE_NUMBER, ("wall_s",)),
    (_LIST, ("coefficients",)),
    (_FACTS, ("coefficients.*",)),
    (_MAYBE_FACTS, ("coefficients.*.coefficients",)),
    (_MAYBE_LIST, ("deployment.devices",)),
    (_TEXT, ("deployment.devices.*.device",)),
    (_COUNT, ("deployment.devices.*.count",)),
    (_MAYBE_FACTS, ("deployment.devices.*.price",)),
    (_TEXT, ("summary.window.kind",)),
    (_NUMBER, ("summary.window.start_s", "summary.window.end_s", "summary.slo.tbt_ms")),
    (_COUNT, ("summary.requests.completed",)),
    (_MAYBE_COUNT, ("summary.requests.*",)),
    (_MAYBE_NUMBER, ("summary.throughput_tokens_per_s", "summary.tbt_ms.*", "summary.time_shares.*")),
    (_MAYBE_NUMBER, ("summary.cost.usd_per_hour", "summary.cost.usd_per_million_tokens")),
    (_MAYBE_FACTS, ("summary.resumed", "summary.schedule")),
    (_MAYBE_COUNT, ("summary.resumed.times",)),
    (_MAYBE_LIST, ("summary.faults",)),
    (_FACTS, ("summary.faults.*",)),
    (_TEXT, ("summary.faults.*.why",)),
    (_LIST, ("summary.faults.*.workers", "summary.faults.*.struck")),
    (_TEXT, ("summary.faults.*.workers.*",)),
    (_NUMBER, ("summary.faults.*.noticed_s", "summary.faults.*.recovery_s")),
    (_FACTS, ("summary.faults.*.struck.*",)),
    (_NUMBER, ("summary.faults.*.struck.*.at_s",)),
    (_MAYBE_NUMBER, ("summary.faults.*.detection_s", "summary.faults.*.normal_again_s")),
    (_MAYBE_NUMBER, ("summary.faults.*.tbt_worst_ms", "summary.faults.*.goodput_lost_tokens")),
    (_LIST, ("totals.replica_busy_s",)),
    (_NUMBER, ("totals.end_s", "totals.queue_empty_s")),
    (_MAYBE_NUMBER, ("totals.replica_busy_s.*", "totals.attention_busy_s")),
    (_MAYBE_FACTS, ("partial",)),
    (_MAYBE_FACTS, (*(f"summary.{name}" for name in _SEEN), "summary.attempts.by_error")),
    (_MAYBE_NUMBER, tuple(f"summary.{name}.*" for name in _SEEN)),
    (_MAYBE_COUNT, (*(f"summary.attempts.{name}" for name in _ATTEMPTS), "summary.attempts.by_error.*")),
    (_NUMBER, ("totals.peak_kv_tokens", "totals.kv_capacity_tokens")),
)  # fmt: skip
# There, whatever it says.
_SAID = (
    *("summary.tbt_ms.p50", "summary.tbt_ms.p99", "summary.throughput_tokens_per_s"),
    *("summary.cost.usd_per_hour", "summary.cost.usd_per_million_tokens"),
)


def require_whole(run: Run) -> None:
    """A UserError that names what the manifest does not say, or says in another way than Runs do."""
    for kinds, paths in _NEEDED:
        for path in paths:
            for place, found in _at(run.manifest, path.split(".")):
                if not isinstance(found, kinds) or (isinstance(found, float) and not math.isfinite(found)):
                    raise _damaged(run, place)
    for path in _SAID:
        *around, name = path.split(".")
        if any(name not in found for _, found in _at(run.manifest, around)):
            raise _damaged(run, path)


def _at(found: Any, keys: Sequence[str], place: str = "") -> Iterator[tuple[str, Any]]:
    """What is at this place, or at all places that it stands for, each named; None where it is missing."""
    if not keys:
        yield place.removeprefix("."), found
        return
    key, *rest = keys
    if key != "*":
        parts: dict[Any, Any] = {key: found.get(key) if isinstance(found, dict) else None}
    else:
        parts = found if isinstance(found, dict) else dict(enumerate(found or ()))
    for name, part in parts.items():
        yield from _at(part, rest, f"{place}.{name}")


def _damaged(run: Run, path: str) -> UserError:
    where = run.directory / MANIFEST
    return UserError(
        "run-damaged", f"{where} is damaged: it does not say {path}, or not as a Run does; replay it again"
    )
