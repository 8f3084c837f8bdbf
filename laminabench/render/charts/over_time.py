"""Charts of Runs over time: requests and KV in service, tokens a second, time between tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.over_time import MOST_SLICES, first_tokens_over_time, over_time
from laminabench.analysis.streams import observed_of
from laminabench.render.charts.chart import (
    Chart,
    PlotlyJson,
    Values,
    axis,
    dotted_line,
    line,
    rounded,
    times_axis,
)
from laminabench.render.format import number4
from laminabench.render.model import listed
from laminabench.render.shown import Shown
from laminabench.render.style import PURPLE
from laminabench.runs.summary import FaultCost
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import Float64, Ticks, ticks

# About as many as a chart has pixels to show.
SLICES = 240
_FAULT = "#777777"
_SLICED = f"in up to {MOST_SLICES} equal slices of the replay"
_SECONDS = axis("seconds since the replay began", rangemode="tozero")


def charts(runs: Sequence[Shown]) -> list[Chart]:
    """Return requests, KV, throughput and TBT over time; KV only of Runs that know it."""
    served = _service(runs, "size", "batch", "Batch size over time", "requests", "Requests being served")
    tokens = [rate_chart(runs), tbt_chart(runs), *ttft_charts(runs)]
    known = [each for each in runs if not each.client_only]
    if not known:
        return [served, *tokens]
    kv_cache = _service(
        known, "kv_tokens", "kv", "KV cache over time", "KV tokens", "KV tokens of those being served"
    )
    return [served, kv_cache, *tokens]


def _service(runs: Sequence[Shown], column: str, key: str, title: str, unit: str, what: str) -> Chart:
    traces, words = [], []
    for each in runs:
        sliced = in_service(each.run.outcome, column, SLICES)
        traces += [_band(each, sliced), _line(each, sliced.middle_s, sliced.mean, unit)]
        peak, mean = float(sliced.most.max()), float(sliced.mean.mean())
        words.append(f"{each.name} {number4(mean)} on average over the whole run and {number4(peak)} at most")
    # A client takes a request for served from its first chunk to its last.
    clients = " Where only a client saw a request it counts from its first chunk to its last."
    from_clients = clients if any(each.client_only for each in runs) else ""
    note = (
        f"{what}, all batches together. Each point is the mean of one of {SLICES} equal slices of the "
        "replay; the band reaches from the least to the most at any moment of the slice."
        f"{from_clients}{_marked(runs)}"
    )
    layout = {"xaxis": _SECONDS, "yaxis": axis(unit, rangemode="tozero"), "shapes": _marks(runs)}
    return Chart(key, title, f"{title}: {listed(words)}.", note, traces, layout)


def rate_chart(runs: Sequence[Shown]) -> Chart:
    """Return tokens a second."""
    traces = []
    for each in runs:
        rates = over_time(each.run.outcome)
        traces.append(_line(each, _middles(rates.edges_s), rates.tokens_per_s, "tokens/s"))
    summaries = [f"{each.name} {number4(each.summary.throughput_tokens_per_s)}" for each in runs]
    return Chart(
        "rate",
        "Tokens a second over time",
        f"Tokens a second over time; in the steady window {listed(summaries)}.",
        f"Tokens that came, {_SLICED}.{_marked(runs)}",
        traces,
        {"xaxis": _SECONDS, "yaxis": axis("tokens/s", rangemode="tozero"), "shapes": _marks(runs)},
    )


def tbt_chart(runs: Sequence[Shown]) -> Chart:
    """Return median and 99th percentile of the time between tokens."""
    limit_ms = runs[0].slo.tbt_ms
    fields = ("tbt_p50_ms", "tbt_p99_ms")
    traces, values = _percentiles(runs, lambda each: over_time(each.run.outcome), fields)
    return Chart(
        "tbt-time",
        "Time between tokens over time",
        f"Median and 99th percentile of the time between tokens over time, limit {limit_ms:g} ms.",
        f"Median (thick) and 99th percentile (thin) of the tokens that came, {_SLICED}.{_marked(runs)}",
        traces,
        _with_limit(runs, limit_ms, times_axis("TBT in ms", *values, [limit_ms])),
    )


def ttft_charts(runs: Sequence[Shown]) -> list[Chart]:
    """Return median and 99th percentile of the time to the first token, of Runs that compute prompts."""
    runs = [each for each in runs if each.run.outcome.prompts is not None]
    if not runs:
        return []
    limit_ms = runs[0].slo.ttft_ms or None
    traces, values = _percentiles(runs, _first_tokens, ("p50", "p99"))
    y = times_axis("TTFT in ms", *values, [] if limit_ms is None else [limit_ms])
    chart = Chart(
        "ttft-time",
        "Time to the first token over time",
        "Median and 99th percentile of the time to the first token over time.",
        f"Median (thick) and 99th percentile (thin) of the first tokens that came, {_SLICED}.",
        traces,
        {"xaxis": _SECONDS, "yaxis": y} if limit_ms is None else _with_limit(runs, limit_ms, y),
    )
    return [chart]


class _Waits(NamedTuple):
    edges_s: Float64
    p50: Float64
    p99: Float64


def _first_tokens(each: Shown) -> _Waits:
    edges_s = over_time(each.run.outcome).edges_s
    return _Waits(edges_s, *first_tokens_over_time(each.run.outcome, edges_s))


def _percentiles(
    runs: Sequence[Shown], measure: Callable[[Shown], Any], fields: tuple[str, str]
) -> tuple[list[PlotlyJson], list[Float64]]:
    """Return a thick and a thin line for each Run, and their values."""
    traces, values = [], []
    for each in runs:
        percentiles = measure(each)
        for name, field, width in zip(("p50", "p99"), fields, (2, 1), strict=True):
            values.append(getattr(percentiles, field))
            named = f"{each.name}: {name}"
            traces.append(_line(each, _middles(percentiles.edges_s), values[-1], "ms", named, width))
    return traces, values


def _with_limit(runs: Sequence[Shown], limit_ms: float, y: PlotlyJson) -> PlotlyJson:
    layout = dotted_line(limit_ms, f"limit {limit_ms:g} ms", vertical=False)
    layout["shapes"] += _marks(runs)
    layout["annotations"][0] |= {"x": 1, "xref": "paper", "xanchor": "right"}
    if y.get("type") == "log":  # plotly then takes positions as logarithms
        layout["annotations"][0]["y"] = math.log10(limit_ms)
    return {"xaxis": _SECONDS, "yaxis": y, **layout}


def _middles(edges_s: Float64) -> Float64:
    return (edges_s[:-1] + edges_s[1:]) / 2


def _line(each: Shown, x: Values, y: Values, unit: str, name: str = "", width: float = 2) -> PlotlyJson:
    hover = f"%{{y:,.4~g}} {unit} at %{{x:,.1f}} s"
    return line(each, x, y, hover, name, width=width, legendgroup=name or each.name)


def _band(each: Shown, sliced: Sliced) -> PlotlyJson:
    """Return an area between minimum and maximum."""
    return {
        "type": "scatter",
        "mode": "none",
        "fill": "toself",
        "x": [*(forth := rounded(sliced.middle_s)), *reversed(forth)],
        "y": [*rounded(sliced.most), *reversed(rounded(sliced.least))],
        "fillcolor": each.colour,
        "opacity": 0.18,
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": each.name,
        "meta": {"run": each.number},
    }


def _marks(runs: Sequence[Shown]) -> list[PlotlyJson]:
    """Return spans from when each fault began until iterations went on, and where a replay was resumed."""
    return [mark for each in runs for mark in (*map(_fault, each.summary.fault_costs), *_resumed(each))]


def _fault(fault: FaultCost) -> PlotlyJson:
    ends = {"x0": fault.began_s, "x1": fault.noticed_s + fault.recovery_s, "y0": 0, "y1": 1}
    return {
        "type": "rect", "name": "fault, until iterations resume", "yref": "paper", "layer": "below",
        "fillcolor": _FAULT, "opacity": 0.35, "line": {"width": 1, "color": _FAULT}, **ends,
    }  # fmt: skip


def _resumed(each: Shown) -> Iterator[PlotlyJson]:
    for at_s in each.summary.resumed_s:
        ends = {"x0": at_s, "x1": at_s, "y0": 0, "y1": 1}
        line = {"color": PURPLE, "dash": "dash", "width": 1.5}
        yield {"type": "line", "name": "resumed", "yref": "paper", "line": line, **ends}


def _marked(runs: Sequence[Shown]) -> str:
    faulty = any(each.summary.fault_costs for each in runs)
    return " Shaded: a fault, until iterations went on." if faulty else ""


class Sliced(NamedTuple):
    """Values per time slice: the mean over its time, and the minimum and maximum at any moment."""

    middle_s: Float64
    mean: Float64
    least: Float64
    most: Float64


def in_service(outcome: Outcome, column: str, slices: int) -> Sliced:
    """Return `size` or `kv_tokens` of all batches together, in equal slices of the replay.

    A batch counts from the start of an iteration to that of its next one, or, if no request stays for that,
    to the iteration's own end; a request that only a client observed counts from its first chunk to its last.
    Mean and extremes of a slice are exact.
    """
    middle_s = np.linspace(0.0, outcome.end_s, 2 * slices + 1)[1::2]
    at, level = _levels(outcome, column)
    edges = ticks(np.linspace(0.0, outcome.end_s, slices + 1))
    if edges[-1] == 0:  # all requests were rejected
        return Sliced(middle_s, *np.zeros((3, slices)))
    # The times of changes and of slices' beginnings, each with the level from then on.
    moments = np.unique(np.concatenate([at, edges[:-1]]))
    place = np.searchsorted(at, moments, side="right") - 1
    levels = np.where(place >= 0, level[place], 0)
    lasts = np.diff(np.append(moments, max(int(edges[-1]), int(moments[-1]))))
    inside = moments < edges[-1]
    moments, levels, lasts = moments[inside], levels[inside], lasts[inside]
    first = np.searchsorted(moments, edges[:-1])
    width = np.maximum(np.add.reduceat(lasts, first), 1)
    mean = np.add.reduceat(levels * lasts.astype(np.float64), first) / width
    least, most = (each.reduceat(levels, first).astype(np.float64) for each in (np.minimum, np.maximum))
    return Sliced(middle_s, mean, least, most)


def _levels(outcome: Outcome, column: str) -> tuple[Ticks, NDArray[np.int64]]:
    """Return the times at which the sum over all batches changes, ascending, and the new values."""
    observed = observed_of(outcome)
    if observed is not None:
        assert column == "size"
        some = observed.streams.first >= 0
        ones = np.ones(np.count_nonzero(some), np.int64)
        return _sums(observed.streams.first[some], observed.streams.last[some], ones)
    rows = outcome.iterations
    start = ticks(rows["start_s"])
    until = start + ticks(rows["duration_s"])
    for batch in np.unique(rows["batch"]).tolist():
        own = np.flatnonzero(rows["batch"] == batch)
        stayed = (rows["size"][own] > rows["joined"][own])[1:]
        until[own[:-1][stayed]] = start[own[1:][stayed]]
    return _sums(start, until, rows[column].astype(np.int64))


def _sums(start: Ticks, until: Ticks, value: NDArray[np.int64]) -> tuple[Ticks, NDArray[np.int64]]:
    """Return the times at which the sum of overlapping spans changes, and the new values."""
    at = np.concatenate([start, until])
    order = np.argsort(at, kind="stable")
    at, change = at[order], np.concatenate([value, -value])[order]
    moments, first = np.unique(at, return_index=True)
    if not len(moments):
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    return moments, np.cumsum(np.add.reduceat(change, first))
