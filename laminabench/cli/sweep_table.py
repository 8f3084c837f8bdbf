"""How a sweep is printed: a line for each point, the best of each column marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from laminabench.analysis.metrics_table import COLUMNS
from laminabench.present.numbers import number, share
from laminabench.present.terminal import literal

if TYPE_CHECKING:
    from rich.console import Console

# More are a page, and in the table that was written.
MOST_ERRORS = 8


Row = dict[str, Any]


def ordered(rows: Sequence[Row], metric: str | None) -> list[Row]:
    """The best by a metric first, those without it last; as the grid, if there is no metric."""
    if metric is None:
        return list(rows)
    key, more = COLUMNS[metric].key, COLUMNS[metric].better == "more"
    known = [row for row in rows if row.get(key) is not None]
    return [
        *sorted(known, key=lambda row: float(row[key]), reverse=more),
        *(row for row in rows if row.get(key) is None),
    ]


def best(rows: Sequence[Row]) -> dict[str, float]:
    """The best value of each metric that any point has."""
    found = {}
    for name, metric in COLUMNS.items():
        values = [row[metric.key] for row in rows if row.get(metric.key) is not None]
        if values:
            found[name] = max(values) if metric.better == "more" else min(values)
    return found


def render(console: Console, result: dict[str, Any]) -> None:
    """The table, then what failed, then where all of it is."""
    rows, columns = result["rows"], list(result["vary"])
    console.print(_headline(result), soft_wrap=True)
    console.print(_table(rows, columns, result["best"]))
    failed = _by_error(rows, columns)
    for error, points in list(failed.items())[:MOST_ERRORS]:
        others = f" and {len(points) - 1:,} more" if len(points) > 1 else ""
        console.print(f"{literal(points[0])}{others}: {literal(error)}", soft_wrap=True)
    if len(failed) > MOST_ERRORS:
        console.print(f"and {len(failed) - MOST_ERRORS:,} other reasons")
    console.print(
        f"[dim]* the best of its column; all columns in {literal(result['parquet'])}[/dim]", soft_wrap=True
    )


def _headline(result: dict[str, Any]) -> str:
    how = " and ".join(sorted({row["backend"] for row in result["rows"]}))
    kept = f", {result['kept']:,} kept from before" if result["kept"] else ""
    failed = f", {result['failed']:,} failed" if result["failed"] else ""
    points = "1 point" if result["points"] == 1 else f"{result['points']:,} points"
    return f"{points}, [bold]{how}[/bold]{kept}{failed}"


def _by_error(rows: Sequence[Row], columns: Sequence[str]) -> dict[str, list[str]]:
    """The points that failed, by why: many do for the same reason."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["error"]:
            point = ", ".join(f"{name}={_plain(row[name])}" for name in columns)
            found.setdefault(row["error"], []).append(point)
    return found


def _table(rows: Sequence[Row], columns: Sequence[str], top: dict[str, float]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in columns:
        numeric = all(isinstance(row[name], int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left")
    for metric in COLUMNS.values():
        assert metric.column is not None
        table.add_column(metric.column[1], justify="right")
    for row in rows:
        cells = [literal(_plain(row[name])) for name in columns]
        for name, metric in COLUMNS.items():
            value = row.get(metric.key)
            text = share(value) if metric.is_share else number(value)
            cells.append(f"[bold]{text}[/bold]*" if value is not None and value == top[name] else f"{text} ")
        table.add_row(*cells)
    return table


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
