"""The table of a sweep's points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from laminabench.analysis.metrics_table import COLUMNS
from laminabench.render.format import number, share, short
from laminabench.render.model import Cell, Row, Sheet


def points_sheet(
    rows: Sequence[Mapping[str, Any]], varied: Sequence[str], best: Mapping[str, float]
) -> Sheet:
    """Return what was varied, and the metrics of each point; the best of a metric has a star."""
    numeric = {name for name in varied if all(isinstance(row[name], int | float) for row in rows)}
    columns = [f">{name}" if name in numeric else name for name in varied]
    columns += [f">{metric.column[1]}" for metric in COLUMNS.values() if metric.column]
    lines: list[Row] = []
    for row in rows:
        cells = [Cell(short(row[name])) for name in varied]
        for name, metric in COLUMNS.items():
            value = row.get(metric.key)
            text = share(value) if metric.is_share else number(value)
            wins = value is not None and value == best[name]
            cells.append(Cell(f"{text}*", value, "strong") if wins else Cell(f"{text} ", value))
        lines.append(cells)
    return Sheet("", columns, lines)
