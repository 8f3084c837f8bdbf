"""The choices of a sweep's page, and the grid of one metric between two flags."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from laminabench.analysis.metrics_table import COLUMNS, METRICS, better
from laminabench.render.format import short
from laminabench.util.errors import UserError
from laminabench.workflows.sweep.read import StoredSweep

FIXED = "fix-"
NO_FLAG = "-"
_TITLES = {metric.key: metric.title for metric in METRICS if metric.key and metric.title}
_UNITS = {metric.key: metric.unit for metric in METRICS if metric.key}


def title_of(key: str) -> str:
    """Return a metric's title with its unit; flags and untitled metrics keep their keys."""
    if key in _TITLES:
        return _TITLES[key]
    unit = next((_UNITS[part] for part in (key, key.rpartition(".")[0]) if part in _UNITS), "")
    return f"{key}, {unit}" if unit else key


def is_share(key: str) -> bool:
    return next((_UNITS[part] for part in (key, key.rpartition(".")[0]) if part in _UNITS), "") == "share"


def values_of(sweep: StoredSweep, flag: str) -> list[str]:
    """Return the values of a flag: numbers by size, others in their given order."""
    values = list(dict.fromkeys(sweep.column(flag)))
    if all(isinstance(value, int | float) for value in values):
        values.sort()
    return list(dict.fromkeys(map(short, values)))


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices that a link of the sweep's page contains."""

    at: str
    x: str
    y: str | None
    metric: str
    fixed: dict[str, str]  # flags shown at one value; for others the best point
    along: list[str]  # axes of the parallel coordinates
    sort: str | None  # a column; -COLUMN reverses
    point: int | None

    def link(self, **other: Any) -> str:
        """Return the query of the current page with some choices changed."""
        own: dict[str, object] = {
            "at": self.at,
            "x": self.x,
            "y": self.y or NO_FLAG,
            "metric": self.metric,
            **{f"{FIXED}{flag}": value for flag, value in self.fixed.items()},
            "along": self.along,
            "sort": self.sort,
            "point": self.point,
        } | other
        return "?" + urlencode({key: value for key, value in own.items() if value is not None}, doseq=True)


def choices(sweep: StoredSweep, at: str, query: QueryParams) -> Choices:
    """Parse the query; raise UserError for flags, metrics or values that the sweep lacks."""
    varied = sorted(sweep.varied, key=lambda flag: len(values_of(sweep, flag)) < 2)  # those that vary first
    metrics = metrics_of(sweep)

    def one_of(name: str, value: str, known: Sequence[str]) -> str:
        if value not in known:
            raise UserError("view-value", f"{name}={value}: this sweep has {', '.join(known) or 'none'}")
        return value

    x = one_of("x", query.get("x", varied[0]), varied)
    others = [flag for flag in varied if flag != x]
    y = query.get("y", x)
    if y == x:
        y = others[0] if others else NO_FLAG
    metric = one_of("metric", query.get("metric") or metrics[0], metrics)
    fixed = {
        flag: one_of(f"{FIXED}{flag}", value, values_of(sweep, flag))
        for flag in varied
        if flag not in (x, y) and (value := query.get(f"{FIXED}{flag}"))
    }
    columns = [*sweep.varied, *metrics]
    usual = [*sweep.varied, *(key for key in _SHOWN if key in metrics)]
    along = [one_of("along", each, columns) for each in query.getlist("along")] or usual
    along += [metric] * (metric not in along)
    sort = query.get("sort") or None
    if sort:
        one_of("sort", sort.removeprefix("-"), columns)
    point = query.get("point")
    if point and not (point.isdecimal() and len(point) < 10 and int(point) < sweep.manifest.points):
        raise UserError("view-value", f"point={point}: this sweep has {sweep.manifest.points:,} points")
    return Choices(
        at,
        x,
        None if y == NO_FLAG else one_of("y", y, varied),
        metric,
        fixed,
        along,
        sort,
        int(point) if point else None,
    )


# Default axes of the parallel coordinates.
_SHOWN = ("throughput_tokens_per_s", "tbt_ms.p99", "slo.token_attainment", "cost.usd_per_million_tokens")


def metrics_of(sweep: StoredSweep) -> list[str]:
    """Return the metrics of any point: the sweep's own, titled ones, then all others."""
    known = [key for key in sweep.metrics if any(value is not None for value in sweep.column(key))]
    first = [metric.key for metric in COLUMNS.values()]
    return sorted(
        known, key=lambda key: (first.index(key) if key in first else len(first), key not in _TITLES)
    )


class Cell(NamedTuple):
    """The best point at one pair of the axes' values."""

    row: int | None  # the shown point; None if all failed
    value: float | None
    points: int
    error: str | None  # of the first point, if all failed


class Grid(NamedTuple):
    xs: list[str]
    ys: list[str]
    cells: list[list[Cell | None]]  # by y, then x; None where the sweep has no point


def grid(sweep: StoredSweep, chosen: Choices) -> Grid:
    """Return the metric between the two flags, with the best point for each cell."""
    xs = values_of(sweep, chosen.x)
    ys = [""] if chosen.y is None else values_of(sweep, chosen.y)
    x_of = [short(value) for value in sweep.column(chosen.x)]
    y_of = [""] * len(x_of) if chosen.y is None else [short(value) for value in sweep.column(chosen.y)]
    values, errors = sweep.column(chosen.metric), sweep.column("error")
    fixed = [(sweep.column(flag), value) for flag, value in chosen.fixed.items()]
    inside: dict[tuple[str, str], list[int]] = {}
    for row, place in enumerate(zip(x_of, y_of, strict=True)):
        if all(short(column[row]) == value for column, value in fixed):
            inside.setdefault(place, []).append(row)
    best = min if better(chosen.metric) == "less" else max

    def cell(rows: list[int] | None) -> Cell | None:
        if not rows:
            return None
        known = [row for row in rows if values[row] is not None and math.isfinite(values[row])]
        if not known:
            return Cell(None, None, len(rows), errors[rows[0]] or "it has no such number")
        row = best(known, key=lambda row: values[row])
        return Cell(row, float(values[row]), len(rows), None)

    return Grid(xs, ys, [[cell(inside.get((x, y))) for x in xs] for y in ys])


def in_order(sweep: StoredSweep, sort: str | None) -> list[int]:
    """Sort rows by a column: best first if the metric has a direction, else largest; nulls last."""
    rows = list(range(sweep.manifest.points))
    if sort is None:
        return rows
    key = sort.removeprefix("-")
    values = sweep.column(key)
    numeric = all(value is None or isinstance(value, int | float) for value in values)
    down = (better(key) == "more" and key not in sweep.varied) != sort.startswith("-")
    known = [row for row in rows if values[row] is not None]
    known.sort(key=lambda row: values[row] if numeric else str(values[row]), reverse=down)
    return [*known, *(row for row in rows if values[row] is None)]
