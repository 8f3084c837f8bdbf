"""A window of the replay by iteration, with a lane for each batch of each Run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from laminabench.render.charts.breakdown import PARTS, key_of, wrapped
from laminabench.render.charts.chart import Chart, PlotlyJson, axis, bar
from laminabench.render.shown import Shown
from laminabench.sim.outcome import Columns
from laminabench.sim.spec import Float64
from laminabench.util.errors import UserError

# Iterations in the default window, of the Run whose iterations are the longest.
_ITERATIONS = 8
# A screen cannot show more than these.
MOST_ITERATIONS = 400
_LANE_PX, _REST_PX = 58, 110
_UNKNOWN = "not known"
_COLOURS = {**PARTS, _UNKNOWN: PARTS["waiting"]}
# The host's part comes first; model, attention and network alternate with every layer.
_ORDER = ("host", "model", "attention", "network", "waiting")


def default_window_s(runs: Sequence[Shown]) -> tuple[float, float]:
    """Return a window around the middle of the steady window of the Run that ends first."""
    middle = min((each.window.start_s + each.window.end_s) / 2 for each in runs)
    lasts = [each.run.outcome.iterations["duration_s"] for each in runs]
    half = max((float(np.median(each)) for each in lasts if len(each)), default=0.0) * _ITERATIONS / 2
    return max(0.0, middle - half), middle + half


def closed(window_s: tuple[float, float] | None, runs: Sequence[Shown]) -> tuple[float, float] | None:
    """Return a chosen window with its open end set to the end of the longest Run."""
    if window_s is None:
        return None
    end_s = max(each.run.outcome.end_s for each in runs)
    if window_s[0] >= end_s:
        raise UserError(
            "report-window",
            f"--window begins at {window_s[0]:g} s and the longest Run ends at {end_s:,.3f} s",
        )
    return window_s if math.isfinite(window_s[1]) else (window_s[0], end_s)


def timeline_chart(runs: Sequence[Shown], window_s: tuple[float, float]) -> Chart:
    """Return the iterations in the window, each divided by what its time was spent on."""
    start_s, end_s = window_s
    traces: list[PlotlyJson] = []
    lanes: list[str] = []
    cut, empty, unseen = [], [], []
    for each in runs:
        if each.client_only:
            unseen.append(each.name)
            continue
        rows, all_of_them = _inside(each.run.outcome.iterations, start_s, end_s)
        if not all_of_them:
            empty.append(each.name)
        elif all_of_them > MOST_ITERATIONS:
            cut.append(f"{MOST_ITERATIONS} of {all_of_them:,} iterations of {each.name}")
        for batch in np.unique(rows["batch"]).tolist():
            own = {name: values[rows["batch"] == batch] for name, values in rows.items()}
            lanes.append(f"{wrapped(each.name)}<br>batch {batch}")
            traces += _lane(each, lanes[-1], own)
    drawn = {trace["name"] for trace in traces}
    keys = [
        {**key_of(part, colour), "marker": _marker(part)}
        for part, colour in _COLOURS.items()
        if part in drawn
    ]
    note = (
        "Each bar is an iteration, divided in proportion into the host's time before its first slice, model, "
        "attention and network (which alternate in every layer and are each drawn in one piece) and waiting."
        f"{_list(' Only the first ', cut, '.')}{_list(' No iteration runs in this window in ', empty, '.')}"
        f"{_list(' A client cannot see the iterations of ', unseen, '.')}"
    )
    return Chart(
        "timeline",
        f"Timeline from {start_s:,.3f} to {end_s:,.3f} s",
        f"Iterations between {start_s:,.3f} and {end_s:,.3f} seconds, one lane a batch.",
        note,
        keys + traces,
        {
            "barmode": "overlay",
            "bargap": 0.25,
            "hovermode": "closest",
            "xaxis": axis("seconds since the replay began", range=[start_s, end_s]),
            "yaxis": {
                "type": "category",
                "automargin": True,
                "categoryorder": "array",
                "categoryarray": lanes[::-1],
            },
        },
        height_px=_LANE_PX * max(len(lanes), 1) + _REST_PX,
    )


def _inside(rows: Columns, start_s: float, end_s: float) -> tuple[Columns, int]:
    """Return the first iterations in the window, and their total number."""
    end = rows["start_s"] + rows["duration_s"]
    inside = np.flatnonzero((rows["start_s"] < end_s) & (end > start_s))
    return {name: values[inside[:MOST_ITERATIONS]] for name, values in rows.items()}, len(inside)


def _lane(each: Shown, lane: str, rows: Columns) -> Iterator[PlotlyJson]:
    """Return the parts of each iteration in a lane, with an outline around each iteration."""
    texts = [_description(rows, i) for i in range(len(rows["start_s"]))]
    for part, start_s, length_s in _pieces(rows):
        there = length_s > 0
        if not there.any():
            continue
        yield bar(
            each,
            part,
            [lane] * int(there.sum()),
            length_s[there],
            legendgroup=part,
            base=[round(float(at), 7) for at in start_s[there]],
            marker=_marker(part),
            hovertemplate="%{customdata}",
            customdata=[words for words, some in zip(texts, there, strict=True) if some],
        )
    yield bar(
        each,
        "iteration",
        [lane] * len(texts),
        rows["duration_s"],
        base=[round(float(at), 7) for at in rows["start_s"]],
        # The page's script sets the line's colour to the paper's.
        marker={"color": "rgba(0,0,0,0)", "line": {"width": 2}},
        hoverinfo="skip",
    )


def _pieces(rows: Columns) -> Iterator[tuple[str, Float64, Float64]]:
    """Yield each part of the iterations: its name, starts and durations."""
    lasts, at = rows["duration_s"], rows["start_s"].copy()
    spent = {part: np.nan_to_num(rows[f"{part}_s"]) for part in _ORDER[:-1]}
    known = np.isfinite(rows["model_s"]) & np.isfinite(rows["attention_s"])
    all_parts: Float64 = np.sum(list(spent.values()), axis=0)
    # Parts that overlapped are scaled down in proportion.
    fits: NDArray[np.float64] = np.minimum(1.0, lasts / np.maximum(all_parts, 1e-12))
    spent["waiting"] = np.maximum(lasts - all_parts, 0.0)
    for part in _ORDER:
        length_s = np.where(known, spent[part] * (1.0 if part == "waiting" else fits), 0.0)
        yield part, at.copy(), length_s
        at += length_s
    yield _UNKNOWN, rows["start_s"], np.where(known, 0.0, lasts)


def _marker(part: str) -> PlotlyJson:
    hatched = (
        {"pattern": {"shape": "/", "fillmode": "overlay", "fgcolor": "#ffffff", "size": 8}}
        if part == _UNKNOWN
        else {}
    )
    return {"color": _COLOURS[part], **hatched}


def _description(rows: Columns, i: int) -> str:
    """Describe one iteration for its tooltip."""
    spent = {part: rows[f"{part}_s"][i] * 1000 for part in _ORDER[:-1]}
    parts = ", ".join(f"{part} {ms:.4g}" for part, ms in spent.items() if np.isfinite(ms))
    return (
        f"iteration {rows['iteration'][i]:,}: {rows['duration_s'][i] * 1000:.4g} ms"
        f"<br>{rows['size'][i]:,} requests, {rows['joined'][i]:,} new, {rows['kv_tokens'][i]:,} KV tokens"
        f"<br>in ms: {parts}"
    )


def _list(before: str, names: Sequence[str], after: str) -> str:
    return f"{before}{', '.join(names)}{after}" if names else ""
