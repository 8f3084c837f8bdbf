"""All fields of a Run's manifest by dotted names, for search, filters and columns."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec

from laminabench.render.format import short
from laminabench.runs.manifest import NUMBERS
from laminabench.util import safe_parse
from laminabench.util.json import JsonObject

Value = str | float | int | bool
Facts = dict[str, Value]
_MOST = 1 << 63


class _Part(msgspec.Struct, frozen=True):
    """The usual columns of one part of run.json; other fields are skipped when decoding."""


class _Named(_Part, frozen=True):
    name: str | None = None


class _Workload(_Part, frozen=True):
    mode: str | None = None


class _Times(_Part, frozen=True):
    p50: float | None = None
    p99: float | None = None


class _Slo(_Part, frozen=True):
    tbt_ms: float | None = None
    token_attainment: float | None = None


class _Cost(_Part, frozen=True):
    usd_per_million_tokens: float | None = None


class _Summary(_Part, frozen=True):
    throughput_tokens_per_s: float | None = None
    mean_batch: float | None = None
    tbt_ms: _Times = _Times()
    slo: _Slo = _Slo()
    cost: _Cost = _Cost()


class _Partial(_Part, frozen=True):
    why: str = ""


class Brief(_Part, frozen=True):
    """The fields of the initial table: decoded ten times as fast as the full manifest."""

    format: str
    system: str
    backend: str
    trace: _Named
    model: _Named
    workload: _Workload
    deployment: _Named
    summary: _Summary
    format_version: int = 0
    partial: _Partial | None = None


class _Full(_Part, frozen=True):
    """All fields but the long ones: coefficients, totals and tables."""

    laminabench: JsonObject = {}
    command: str = ""
    request: str | None = None
    seed: int | None = None
    trace: JsonObject = {}
    transforms: JsonObject = {}
    workload: JsonObject = {}
    deployment: JsonObject = {}
    model: JsonObject = {}
    host: JsonObject = {}
    wall_s: float | None = None
    summary: JsonObject = {}
    partial: JsonObject | None = None


_BRIEF, _FULL = msgspec.json.Decoder(Brief), msgspec.json.Decoder(_Full)
# Prefixes of names; the summary's fields have none.
_PARTS = ("laminabench", "trace", "transforms", "workload", "deployment", "model", "host", "partial")


def brief(document: bytes) -> Brief:
    """Decode the fields of the initial table; raise msgspec's DecodeError if they are malformed."""
    return _BRIEF.decode(document)


_HEAD = ("system", "backend", "deployment.name", "model.name", "trace.name", "workload.mode")
_NUMBERS = (
    *("throughput_tokens_per_s", "mean_batch", "tbt_ms.p50", "tbt_ms.p99"),
    *("slo.tbt_ms", "slo.token_attainment", "cost.usd_per_million_tokens"),
)
_READ = {name: attrgetter(name) for name in _HEAD} | {
    name: attrgetter(f"summary.{name}") for name in _NUMBERS
}
# Fields that a query has without reading full manifests.
BRIEFLY = frozenset(("run", "date", "numbers", "partial.why", *_READ))


def brief_facts(part: Brief, key: str, mtime_ns: int) -> Facts:
    """Return the fields of the initial table; unknown ones are left out."""
    facts = {
        "run": key,
        "date": datetime.fromtimestamp(mtime_ns // 10**9).isoformat(" "),
        "numbers": NUMBERS.get(part.backend, part.backend),
        "partial.why": part.partial.why if part.partial else None,
        **{name: read(part) for name, read in _READ.items()},
    }
    return {name: value for name, value in facts.items() if value is not None}


def all_facts(document: bytes, brief_ones: Facts) -> Facts:
    """Return every field, those of the initial table first."""
    full, facts = _FULL.decode(document), dict(brief_ones)
    facts["command"] = full.command
    for name in ("seed", "wall_s"):
        if (value := getattr(full, name)) is not None:
            facts[name] = value
    _flatten(facts, full.summary, "")
    for part in _PARTS:
        if inner := getattr(full, part):
            _flatten(facts, inner, part)
    if full.request is not None:
        _flatten(facts, choices_of(full.request), "request")
    return facts


def choices_of(request: str) -> Mapping[str, Any]:
    """Parse a request's TOML, whose lines usually are also JSON, which is much faster to parse."""
    choices = {}
    try:
        for line in request.splitlines():
            name, _, value = line.partition(" = ")
            choices[name] = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        try:
            return safe_parse.toml(request)
        except ValueError:
            return {}
    return choices


def _flatten(flat: Facts, facts: Mapping[str, Any], within: str) -> None:
    for name, value in facts.items():
        key = _joined(within, name)
        if isinstance(value, dict):
            _flatten(flat, value, key)
        elif isinstance(value, list):
            if value and not isinstance(value[0], dict | list):
                flat[key] = ", ".join(map(short, value))
        elif isinstance(value, int) and not -_MOST < value < _MOST:
            flat[key] = str(value)  # beyond 64 bits: not comparable
        elif value is not None:
            flat[key] = value


@functools.lru_cache(maxsize=1 << 16)
def _joined(within: str, name: str) -> str:
    """Join two parts of a name; cached, so that ten thousand Runs share one string per name."""
    return f"{within}.{name}" if within else name
