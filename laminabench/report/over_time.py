"""Charts of Runs over time: requests and KV in service, tokens a second, time between tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laminabench.analysis.over_time import MOST_SLICES, over_time
from laminabench.present.numbers import number4
from laminabench.report.chart import Chart, PlotlyJson, axis, dotted_line, label, rounded, series
from laminabench.report.service import Sliced, in_service
from laminabench.report.shown import Shown
from laminabench.runs.summary import FaultCost

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
    note = (
        f"{what}, all batches together. Each point is the mean of one of {SLICES} equal slices of the "
        "replay; the band reaches from the least to the most at any moment of the slice."
        f"{_as_seen(runs)}{_marked(runs)}"
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
            line = _line(each, middle_s, values, "ms", f"{each.name}: {name}")
            line["line"]["width"] = width
            gaps.append(line)
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


def _line(each: Shown, x: Any, y: Any, unit: str, name: str | None = None) -> PlotlyJson:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label(name or each.name),
        "legendgroup": name or each.name,
        "x": rounded(x),
        "y": rounded(y),
        "line": {"color": each.colour, "dash": each.dash, "width": 2},
        "hovertemplate": f"%{{y:,.4~g}} {unit} at %{{x:,.1f}} s",
        "meta": {"run": each.number},
    }


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
    return {"shapes": [_fault(each, fault) for each in runs for fault in each.summary.faults or ()]}


def _fault(each: Shown, fault: FaultCost) -> PlotlyJson:
    ends = {"x0": fault.began_s, "x1": fault.noticed_s + fault.recovery_s, "y0": 0, "y1": 1}
    return {
        "type": "rect", "yref": "paper", "layer": "below", "fillcolor": each.colour, "opacity": 0.25,
        "line": {"width": 1, "color": each.colour}, **ends,
    }  # fmt: skip


def _as_seen(runs: Sequence[Shown]) -> str:
    """From when to when a client takes a request for being served."""
    seen = any(each.seen_by_client for each in runs)
    return " Where only a client saw a request it counts from its first chunk to its last." if seen else ""


def _marked(runs: Sequence[Shown]) -> str:
    faulty = any(each.summary.faults for each in runs)
    return " Shaded: a fault, until iterations went on." if faulty else ""
