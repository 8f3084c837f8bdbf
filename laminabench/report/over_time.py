"""Charts of Runs over time: requests and KV in service, tokens a second, time between tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.over_time import MOST_SLICES, over_time
from laminabench.analysis.streams import seen_of
from laminabench.present.numbers import number4
from laminabench.report.chart import Chart, PlotlyJson, Values, axis, dotted_line, line, rounded, series
from laminabench.report.shown import Shown
from laminabench.runs.summary import FaultCost
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import Float64, Ticks, ticks

# About as many as a chart has pixels to tell them apart.
SLICES = 240
_SECONDS = axis("seconds since the replay began", rangemode="tozero")


def charts(runs: Sequence[Shown]) -> list[Chart]:
    """The four of them; that of the KV cache only of Runs that know it."""
    served = _service(runs, "size", "batch", "Batch size over time", "requests", "Requests being served")
    known = [each for each in runs if not each.seen_by_client]
    if not known:
        return [served, *_tokens(runs)]
    kept = _service(
        known, "kv_tokens", "kv", "KV cache over time", "KV tokens", "KV tokens of those being served"
    )
    return [served, kept, *_tokens(runs)]


def _service(runs: Sequence[Shown], column: str, key: str, title: str, unit: str, what: str) -> Chart:
    traces, words = [], []
    for each in runs:
        found = in_service(each.run.outcome, column, SLICES)
        traces += [_band(each, found), _line(each, found.middle_s, found.mean, unit)]
        peak, mean = float(found.most.max()), float(found.mean.mean())
        words.append(f"{each.name} {number4(mean)} on average over the whole run and {number4(peak)} at most")
    # From when to when a client takes a request for being served.
    clients = " Where only a client saw a request it counts from its first chunk to its last."
    as_seen = clients if any(each.seen_by_client for each in runs) else ""
    note = (
        f"{what}, all batches together. Each point is the mean of one of {SLICES} equal slices of the "
        "replay; the band reaches from the least to the most at any moment of the slice."
        f"{as_seen}{_marked(runs)}"
    )
    layout = {"xaxis": _SECONDS, "yaxis": axis(unit, rangemode="tozero"), **_faults(runs)}
    return Chart(key, title, f"{title}: {series(words)}.", note, traces, layout)


def _tokens(runs: Sequence[Shown]) -> list[Chart]:
    slo_tbt_ms = runs[0].slo.tbt_ms
    rates: list[PlotlyJson] = []
    gaps: list[PlotlyJson] = []
    for each in runs:
        found = over_time(each.run.outcome)
        middle_s = (found.edges_s[:-1] + found.edges_s[1:]) / 2
        rates.append(_line(each, middle_s, found.tokens_per_s, "tokens/s"))
        for name, values, width in (("p50", found.tbt_p50_ms, 2), ("p99", found.tbt_p99_ms, 1)):
            gaps.append(_line(each, middle_s, values, "ms", f"{each.name}: {name}", width))
    sliced = f"in up to {MOST_SLICES} equal slices of the replay.{_marked(runs)}"
    summaries = [f"{each.name} {number4(each.summary.throughput_tokens_per_s)}" for each in runs]
    marks = _faults(runs)
    limit = dotted_line(slo_tbt_ms, f"limit {slo_tbt_ms:g} ms", vertical=False)
    limit["shapes"] += marks["shapes"]
    limit["annotations"][0] |= {"x": 1, "xref": "paper", "xanchor": "right"}
    return [
        Chart(
            "rate",
            "Tokens a second over time",
            f"Tokens a second over time; in the steady window {series(summaries)}.",
            f"Tokens that came, {sliced}",
            rates,
            {"xaxis": _SECONDS, "yaxis": axis("tokens/s", rangemode="tozero"), **marks},
        ),
        Chart(
            "tbt-time",
            "Time between tokens over time",
            f"Median and 99th percentile of the time between tokens over time, limit {slo_tbt_ms:g} ms.",
            f"Median (thick) and 99th percentile (thin) of the tokens that came, {sliced}",
            gaps,
            {"xaxis": _SECONDS, "yaxis": axis("ms", rangemode="tozero"), **limit},
        ),
    ]


def _line(each: Shown, x: Values, y: Values, unit: str, name: str = "", width: float = 2) -> PlotlyJson:
    hover = f"%{{y:,.4~g}} {unit} at %{{x:,.1f}} s"
    return line(each, x, y, hover, name, width=width, legendgroup=name or each.name)


def _band(each: Shown, found: Sliced) -> PlotlyJson:
    """From the least to the most: there and back."""
    return {
        "type": "scatter",
        "mode": "none",
        "fill": "toself",
        "x": [*(forth := rounded(found.middle_s)), *reversed(forth)],
        "y": [*rounded(found.most), *reversed(rounded(found.least))],
        "fillcolor": each.colour,
        "opacity": 0.18,
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": each.name,
        "meta": {"run": each.number},
    }


def _faults(runs: Sequence[Shown]) -> dict[str, list[PlotlyJson]]:
    """Of live replays: from when each fault began until iterations went on."""
    return {"shapes": [_fault(each, fault) for each in runs for fault in each.summary.fault_costs]}


def _fault(each: Shown, fault: FaultCost) -> PlotlyJson:
    ends = {"x0": fault.began_s, "x1": fault.noticed_s + fault.recovery_s, "y0": 0, "y1": 1}
    return {
        "type": "rect", "yref": "paper", "layer": "below", "fillcolor": each.colour, "opacity": 0.25,
        "line": {"width": 1, "color": each.colour}, **ends,
    }  # fmt: skip


def _marked(runs: Sequence[Shown]) -> str:
    faulty = any(each.summary.fault_costs for each in runs)
    return " Shaded: a fault, until iterations went on." if faulty else ""


class Sliced(NamedTuple):
    """One value a slice: its time's mean, and the least and the most at any moment of it."""

    middle_s: Float64
    mean: Float64
    least: Float64
    most: Float64


def in_service(outcome: Outcome, column: str, slices: int) -> Sliced:
    """`size` or `kv_tokens` of all batches together, in equal slices from the beginning to the end.

    A batch counts from the start of an iteration to that of its next one, or, where nobody stays for that,
    to the iteration's own end; a request that only a client saw counts from its first chunk to its last.
    Within a slice nothing is left out: mean and extremes are exact.
    """
    middle_s = np.linspace(0.0, outcome.end_s, 2 * slices + 1)[1::2]
    at, level = _levels(outcome, column)
    edges = ticks(np.linspace(0.0, outcome.end_s, slices + 1))
    if edges[-1] == 0:  # everybody was rejected
        return Sliced(middle_s, *np.zeros((3, slices)))
    # When something changes and when a slice begins, each with the level from then on.
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
    """When the sum over all batches changes, ascending, and what it is from then on."""
    seen = seen_of(outcome)
    if seen is not None:
        assert column == "size"
        some = seen.streams.first >= 0
        ones = np.ones(np.count_nonzero(some), np.int64)
        return _sums(seen.streams.first[some], seen.streams.last[some], ones)
    rows = outcome.iterations
    start = ticks(rows["start_s"])
    until = start + ticks(rows["duration_s"])
    for batch in np.unique(rows["batch"]).tolist():
        mine = np.flatnonzero(rows["batch"] == batch)
        stayed = (rows["size"][mine] > rows["joined"][mine])[1:]
        until[mine[:-1][stayed]] = start[mine[1:][stayed]]
    return _sums(start, until, rows[column].astype(np.int64))


def _sums(start: Ticks, until: Ticks, value: NDArray[np.int64]) -> tuple[Ticks, NDArray[np.int64]]:
    """Of spans of time with a value each: when their sum changes, and what it is from then on."""
    at = np.concatenate([start, until])
    order = np.argsort(at, kind="stable")
    at, change = at[order], np.concatenate([value, -value])[order]
    moments, first = np.unique(at, return_index=True)
    if not len(moments):
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    return moments, np.cumsum(np.add.reduceat(change, first))
