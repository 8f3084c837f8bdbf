"""Charts of a sweep: a heat map over two flags, a line over one, parallel coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from laminabench.analysis.metrics_table import better
from laminabench.render.charts.chart import Chart, PlotlyJson, axis, label, marks, rounded
from laminabench.render.charts.sweep_grid import (
    Cell,
    Choices,
    Grid,
    grid,
    is_share,
    title_of,
    values_of,
)
from laminabench.render.format import number4, share, short
from laminabench.render.style import BLUE
from laminabench.workflows.sweep.read import StoredSweep

# Perceptually uniform, also for colour-blind readers.
SCALE = "Viridis"
# From this share of the scale on, black text has more contrast than white.
BRIGHT = 0.42
# Colours of lines, with contrast against both white and black.
LINES = [[0, "#d55e00"], [0.5, "#8a929b"], [1, "#0072b2"]]
# With more cells, numbers in them are no help.
MOST_WRITTEN = 240
_QUIET = "#8a929b"
_ROW_PX = 34


def map_chart(sweep: StoredSweep, chosen: Choices) -> Chart:
    """Return the chosen metric over the chosen flags."""
    matrix = grid(sweep, chosen)
    if chosen.y is None:
        return _line(matrix, chosen)
    key = chosen.metric
    known = [cell for *_, cell in _cells(matrix) if cell.value is not None]
    failed = [each for each in _cells(matrix) if each[2].value is None]
    heat: PlotlyJson = {
        "type": "heatmap",
        "x": [label(x) for x in matrix.xs],
        "y": [label(y) for y in matrix.ys],
        "z": [rounded(_value(cell) for cell in line) for line in matrix.cells],
        "customdata": [[None if cell is None else cell.row for cell in line] for line in matrix.cells],
        "text": [[_pointed_at(cell, chosen) for cell in line] for line in matrix.cells],
        "hovertemplate": f"{_at(chosen)}<br>%{{text}}<extra></extra>",
        "hoverongaps": False,
        "xgap": 2,
        "ygap": 2,
        **_colours(key),
    }
    crosses = {
        **marks("failed", [label(x) for x, *_ in failed], [label(y) for _, y, _ in failed]),
        "text": [_wrapped(cell.error or "") for *_, cell in failed],
        "hovertemplate": f"{_at(chosen)}<br>%{{text}}<extra></extra>",
        "marker": {"symbol": "x-thin", "size": 10, "line": {"width": 2, "color": _QUIET}},
        "showlegend": False,
    }
    layout = {
        "xaxis": axis(label(chosen.x), showgrid=False, **_category(matrix.xs)),
        "yaxis": axis(label(chosen.y), showgrid=False, **_category(matrix.ys)),
        "hovermode": "closest",
        "margin": {"t": 76},
    }
    return Chart(
        "map",
        f"{title_of(key)} over {chosen.x} and {chosen.y}",
        f"Heat map, {len(matrix.xs)} by {len(matrix.ys)}: {_range(key, known)}",
        f"{_of_others(sweep, chosen)} Crosses failed; what is empty was not in the sweep. "
        "A click shows how to repeat a point.",
        [heat, *([_numbers(matrix, key)] if len(known) <= MOST_WRITTEN else []), crosses],
        layout,
        max(260, min(900, _ROW_PX * len(matrix.ys) + 160)),
    )


def _cells(matrix: Grid) -> Iterator[tuple[str, str, Cell]]:
    for y, row in zip(matrix.ys, matrix.cells, strict=True):
        for x, cell in zip(matrix.xs, row, strict=True):
            if cell is not None:
                yield x, y, cell


def _numbers(matrix: Grid, key: str) -> PlotlyJson:
    """Return the numbers of the cells, each in the ink that stands out from its cell's colour."""
    known = [(x, y, cell.value) for x, y, cell in _cells(matrix) if cell.value is not None]
    values = [value for *_, value in known] or [0.0]
    least, most = min(values), max(values)
    flip = better(key) == "less"

    def ink(value: float) -> str:
        at = (value - least) / (most - least) if most > least else 0.0
        return "#14171c" if (1 - at if flip else at) > BRIGHT else "#ffffff"

    return {
        "type": "scatter",
        "mode": "text",
        "x": [label(x) for x, *_ in known],
        "y": [label(y) for _, y, _ in known],
        "text": [written(key, value) for *_, value in known],
        "textfont": {"size": 12, "color": [ink(value) for *_, value in known]},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _line(matrix: Grid, chosen: Choices) -> Chart:
    """Return the metric over one flag."""
    key, cells = chosen.metric, matrix.cells[0]
    known = [(x, cell) for x, cell in zip(matrix.xs, cells, strict=True) if cell and cell.value is not None]
    failed = [x for x, cell in zip(matrix.xs, cells, strict=True) if cell and cell.value is None]
    trace = {
        **marks("", [label(x) for x, _ in known], [_value(cell) for _, cell in known], size=8),
        "mode": "lines+markers",
        "customdata": [cell.row for _, cell in known],
        "text": [_pointed_at(cell, chosen) for _, cell in known],
        "hovertemplate": f"{label(chosen.x)} %{{x}}<br>%{{text}}<extra></extra>",
        "line": {"color": BLUE},
        "showlegend": False,
    }
    layout = {
        "xaxis": axis(label(chosen.x), showgrid=False, **_category(matrix.xs)),
        "yaxis": axis(title_of(key), rangemode="tozero", **({"tickformat": "~%"} if is_share(key) else {})),
        "hovermode": "closest",
    }
    lost = f"Failed: {', '.join(failed)}. " if failed else ""
    return Chart(
        "map",
        f"{title_of(key)} over {chosen.x}",
        f"Line over {chosen.x}: {_range(key, [cell for _, cell in known])}",
        f"{lost}A click shows how to repeat a point.",
        [trace],
        layout,
    )


def lines_chart(sweep: StoredSweep, chosen: Choices) -> Chart:
    """Return parallel coordinates: a line for each point, coloured by the metric."""
    colour = sweep.column(chosen.metric)
    columns = {name: sweep.column(name) for name in chosen.along}
    metrics = [name for name in chosen.along if name not in sweep.varied]
    sense = better(chosen.metric)
    rows = [
        row
        for row in range(sweep.manifest.points)
        if colour[row] is not None and all(columns[name][row] is not None for name in metrics)
    ]
    coloured = {"color": rounded(colour[row] for row in rows), "colorscale": LINES}
    values = {name: [columns[name][row] for row in rows] for name in chosen.along}
    trace = {
        "type": "parcoords",
        "dimensions": [_dimension(sweep, name, each) for name, each in values.items()],
        "line": {**coloured, "reversescale": sense == "less"},
        "labelfont": {"size": 12},
        "tickfont": {"size": 12},
        "unselected": {"line": {"opacity": 0.06}},
    }
    colours = "Blue is better, orange worse" if sense else "Blue is more, orange less"
    longest = max(map(len, values_of(sweep, first))) if (first := chosen.along[0]) in sweep.varied else 0
    left = sweep.manifest.points - len(rows)
    without = f"{left:,} points without these numbers are left out. " if left else ""
    return Chart(
        "lines",
        f"All points, coloured by {title_of(chosen.metric)}",
        f"Parallel coordinates of {len(rows):,} points over {', '.join(map(title_of, chosen.along))}",
        f"{colours}. {without}Drag along an axis to keep what is within; drag its name to move it.",
        [trace],
        {"margin": {"l": max(56, min(190, 16 + 9 * longest)), "r": 56, "t": 70, "b": 24}},
        460,
    )


def _dimension(sweep: StoredSweep, name: str, values: list[Any]) -> PlotlyJson:
    titled = _wrapped(title_of(name), 16)
    if name in sweep.varied and not all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    ):
        words = values_of(sweep, name)
        places = {word: place for place, word in enumerate(words)}
        return {
            "label": titled,
            "values": [places[short(value)] for value in values],
            "tickvals": list(places.values()),
            "ticktext": [label(word) for word in words],
        }
    # If all shares are equal, plotly would extend the axis beyond 100 %.
    more: PlotlyJson = {"tickformat": "~%", "range": [min(0.95, *values), 1]} if is_share(name) else {}
    if name in sweep.varied and len(set(values)) <= 12:
        more["tickvals"] = sorted(set(values))
    return {"label": titled, "values": rounded(values), **more}


def _colours(key: str) -> PlotlyJson:
    """Return a scale whose bright end is the better one."""
    sense = better(key)
    good = f" ({sense} is better)" if sense else ""
    bar = {
        "orientation": "h",
        "x": 0,
        "xanchor": "left",
        "len": 0.6,
        "lenmode": "fraction",
        "y": 1.0,
        "yanchor": "bottom",
        "thickness": 10,
        "outlinewidth": 0,
        "title": {"text": f"{title_of(key)}{good}", "side": "top", "font": {"size": 12}},
        "tickfont": {"size": 12},
        "nticks": 5,
        **({"tickformat": "~%"} if is_share(key) else {}),
    }
    return {"colorscale": SCALE, "reversescale": sense == "less", "showscale": True, "colorbar": bar}


def _category(values: list[str]) -> PlotlyJson:
    return {"type": "category", "categoryorder": "array", "categoryarray": [label(value) for value in values]}


def _value(cell: Cell | None) -> float:
    return float("nan") if cell is None or cell.value is None else cell.value


def written(key: str, value: float | None) -> str:
    return "" if value is None else share(value) if is_share(key) else number4(value)


def _at(chosen: Choices) -> str:
    return f"{label(chosen.x)} %{{x}}, {label(chosen.y or '')} %{{y}}"


def _pointed_at(cell: Cell | None, chosen: Choices) -> str:
    if cell is None or cell.value is None:
        return ""
    of = f", of {cell.points} points" if cell.points > 1 else ""
    return f"{label(title_of(chosen.metric))}: <b>{written(chosen.metric, cell.value)}</b>{of}"


def _of_others(sweep: StoredSweep, chosen: Choices) -> str:
    """Return which points are shown when more flags were varied."""
    others = [flag for flag in sweep.varied if flag not in (chosen.x, chosen.y)]
    if not others:
        return ""
    sense = "best" if better(chosen.metric) else "largest"
    points = (
        f"{flag}={chosen.fixed[flag]}" if flag in chosen.fixed else f"{sense} of {flag}" for flag in others
    )
    return f"With {', '.join(points)}."


def _range(key: str, known: list[Cell]) -> str:
    if not known:
        return "no point has this number"
    values = [cell.value for cell in known if cell.value is not None]
    return f"{title_of(key)} from {written(key, min(values))} to {written(key, max(values))}"


def _wrapped(words: str, width: int = 60) -> str:
    """Wrap text to the chart's width."""
    import textwrap

    return "<br>".join(label(line) for line in textwrap.wrap(words, width)) or label(words)
