"""Many measurements as one text in a cost set: JSON, a curve a line, as TOML takes far longer to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from laminabench.catalog.cost_terms import Float64, Origin
from laminabench.catalog.measured import AttentionLines, Curve, Measured
from laminabench.util.errors import UserError

US, NS = 1e-6, 1e-9
Numbers = tuple[float, ...]


class Row(msgspec.Struct, array_like=True):
    """A curve, or the lines of a worker: what it is of, its axis, its times, its source."""

    key: list[str | int]
    axis: int  # the place of its rows or requests among all axes
    us: Numbers
    source: int
    samples: int
    error: float
    per_token_ns: Numbers = ()  # of lines; `us` is what is fixed


class Source(msgspec.Struct):
    kind: Any
    source: str
    range: str
    error: str  # what the error of each is of


class Packed(msgspec.Struct):
    sources: list[Source]
    axes: list[Numbers]
    gemm: list[Row] = []
    experts: list[Row] = []
    lines: list[Row] = []
    latent: list[Row] = []


KINDS = ("gemm", "experts", "lines", "latent")


def packed(measured: Measured) -> str:
    """All of these kinds, as text."""
    found = Packed([], [])
    sources: dict[tuple[Any, ...], int] = {}
    axes: dict[Numbers, int] = {}
    for kind in KINDS:
        getattr(found, kind).extend(
            _row(key, each, sources, axes) for key, each in sorted(getattr(measured, kind).items())
        )
    found.sources = [Source(*about) for about in sources]
    found.axes = list(axes)
    # A row a line, so that a difference between two versions can be read.
    parts = []
    for field in found.__struct_fields__:
        rows = ",\n".join(msgspec.json.encode(row).decode() for row in getattr(found, field))
        parts.append(f'"{field}": [\n{rows}\n]')
    return "{" + ",\n".join(parts) + "}\n"


def unpacked(text: str, where: str) -> dict[str, dict[Any, Any]]:
    """The mappings of `Measured` in such a text."""
    try:
        found = msgspec.json.decode(text, type=Packed)
        axes = [np.array(axis, np.float64) for axis in found.axes]
        if any((np.diff(axis) <= 0).any() for axis in axes):
            raise ValueError("rows must be in ascending order")
        return {
            kind: {tuple(row.key): _measured(row, axes, found.sources) for row in getattr(found, kind)}
            for kind in KINDS
        }
    except (msgspec.DecodeError, ValueError, IndexError) as error:
        raise UserError("costs-file-incomplete", f"cost set {where}.measured.tables: {error}") from error


def _row(
    key: Iterable[Any], each: Curve | AttentionLines, sources: dict[Any, int], axes: dict[Numbers, int]
) -> Row:
    origin = each.origin
    name, error = next(iter(origin.errors.items()), ("", 0.0))
    source = sources.setdefault((origin.kind, origin.source, origin.range, name), len(sources))
    if isinstance(each, AttentionLines):
        axis, seconds, per_token = each.requests, each.fixed_s, _short(each.per_token_s / NS)
    else:
        axis, seconds, per_token = each.rows, each.seconds, ()
    at = axes.setdefault(_short(axis), len(axes))
    return Row(list(key), at, _short(seconds / US), source, origin.samples, _short([error])[0], per_token)


def _short(values: Iterable[float] | Float64) -> Numbers:
    # Four digits, as everywhere; whole numbers without a point.
    rounded = (float(f"{value:.4g}") for value in np.asarray(values).tolist())
    return tuple(int(value) if value.is_integer() else value for value in rounded)


def _measured(row: Row, axes: list[Float64], sources: list[Source]) -> Curve | AttentionLines:
    axis, about = axes[row.axis], sources[row.source]
    errors: Mapping[str, float] = {about.error: row.error} if about.error else {}
    origin = Origin(about.kind, about.source, about.range, errors, row.samples)
    times = np.array(row.us, np.float64) * US
    per_token = np.array(row.per_token_ns, np.float64) * NS
    if len(axis) != len(times) or len(per_token) not in (0, len(axis)):
        raise ValueError(f"{row.key} needs a time for each number of rows")
    if min((*row.us, *row.per_token_ns)) < 0:
        raise ValueError(f"{row.key} has a time below 0")
    return AttentionLines(axis, times, per_token, origin) if row.per_token_ns else Curve(axis, times, origin)
