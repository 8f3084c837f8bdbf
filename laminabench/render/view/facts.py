"""All fields of a Run's manifest by dotted names, as they are searched, filtered and shown in columns."""

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

Value = str | float | int | bool
Facts = dict[str, Value]
_MOST = 1 << 63


class _Part(msgspec.Struct, frozen=True):
    """What columns usually show of one part of run.json; the rest of it is passed over unread."""


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
    """Enough for the table as it opens: read ten times as fast as everything."""

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


class _Whole(_Part, frozen=True):
    """All but coefficients, totals and tables, which are long."""

    laminabench: dict[str, Any] = {}
    command: str = ""
    request: str | None = None
    seed: int | None = None
    trace: dict[str, Any] = {}
    transforms: dict[str, Any] = {}
    workload: dict[str, Any] = {}
    deployment: dict[str, Any] = {}
    model: dict[str, Any] = {}
    host: dict[str, Any] = {}
    wall_s: float | None = None
    summary: dict[str, Any] = {}
    partial: dict[str, Any] | None = None


_BRIEF, _WHOLE = msgspec.json.Decoder(Brief), msgspec.json.Decoder(_Whole)
# The summary's fields are known by their own names everywhere; others follow the name of their part.
_PARTS = ("laminabench", "trace", "transforms", "workload", "deployment", "model", "host", "partial")


def brief(document: bytes) -> Brief:
    """The little that is read at once; a DecodeError of msgspec where it is not as it has to be."""
    return _BRIEF.decode(document)


_HEAD = ("system", "backend", "deployment.name", "model.name", "trace.name", "workload.mode")
_NUMBERS = (
    *("throughput_tokens_per_s", "mean_batch", "tbt_ms.p50", "tbt_ms.p99"),
    *("slo.tbt_ms", "slo.token_attainment", "cost.usd_per_million_tokens"),
)
_READ = {name: attrgetter(name) for name in _HEAD} | {
    name: attrgetter(f"summary.{name}") for name in _NUMBERS
}
# These a query has without everything being read.
BRIEFLY = frozenset(("run", "date", "numbers", "partial.why", *_READ))


def brief_facts(found: Brief, key: str, mtime_ns: int) -> Facts:
    """Return the fields that the table shows as it opens; what is not known is left out."""
    facts = {
        "run": key,
        "date": datetime.fromtimestamp(mtime_ns // 10**9).isoformat(" "),
        "numbers": NUMBERS.get(found.backend, found.backend),
        "partial.why": found.partial.why if found.partial else None,
        **{name: read(found) for name, read in _READ.items()},
    }
    return {name: value for name, value in facts.items() if value is not None}


def all_facts(document: bytes, brief_ones: Facts) -> Facts:
    """Every field, those that are known first."""
    whole, found = _WHOLE.decode(document), dict(brief_ones)
    found["command"] = whole.command
    for name in ("seed", "wall_s"):
        if (value := getattr(whole, name)) is not None:
            found[name] = value
    _flatten(found, whole.summary, "")
    for part in _PARTS:
        if inner := getattr(whole, part):
            _flatten(found, inner, part)
    if whole.request is not None:
        _flatten(found, choices_of(whole.request), "request")
    return found


def choices_of(request: str) -> Mapping[str, Any]:
    """A request's TOML. Its lines are names and values that JSON has too, which is read much faster."""
    found = {}
    try:
        for line in request.splitlines():
            name, _, value = line.partition(" = ")
            found[name] = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        try:
            return safe_parse.toml(request)
        except ValueError:
            return {}
    return found


def _flatten(found: Facts, facts: Mapping[str, Any], within: str) -> None:
    for name, value in facts.items():
        key = _joined(within, name)
        if isinstance(value, dict):
            _flatten(found, value, key)
        elif isinstance(value, list):
            if value and not isinstance(value[0], dict | list):
                found[key] = ", ".join(map(short, value))
        elif isinstance(value, int) and not -_MOST < value < _MOST:
            found[key] = str(value)  # no number of anything, nor one that others could be compared with
        elif value is not None:
            found[key] = value


@functools.lru_cache(maxsize=1 << 16)
def _joined(within: str, name: str) -> str:
    """Kept, so that ten thousand Runs have one string for each name."""
    return f"{within}.{name}" if within else name
