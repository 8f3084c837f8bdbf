"""The table of the points of a comparison's curves."""

from __future__ import annotations

from collections.abc import Sequence

from laminabench.render.format import number
from laminabench.render.model import Cell, Row, Sheet
from laminabench.workflows.compare.curves import Curve, CurvePoint


def curves_sheet(named: Sequence[tuple[str, Curve]]) -> Sheet:
    """Return a row a point, curve by curve."""
    columns = (
        "",
        ">at most",
        ">mean batch",
        ">TBT p50 ms",
        ">TBT p99 ms",
        ">tokens/s",
        ">$ a million tokens",
    )
    rows: list[Row] = [[name, *_numbers(each)] for name, curve in named for each in curve.points]
    return Sheet("Cost and time between tokens by requests at once, modelled, saturated", columns, rows)


def _numbers(point: CurvePoint) -> list[Cell]:
    times = (1000 * point.tbt_p50_s, 1000 * point.tbt_s)
    values = (point.batch, point.mean_batch, *times, point.tokens_per_s, point.dollars_per_million)
    return [Cell(number(each), each) for each in values]
