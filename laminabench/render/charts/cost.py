"""The chart of a comparison: dollars a million tokens against time between tokens, under any load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from laminabench.render.charts.chart import Chart, PlotlyJson, axis, dotted_line, label, marks, rounded
from laminabench.render.shown import COLOURS, DASHES, OTHERS
from laminabench.workflows.compare.curves import Curve, CurvePoint

_NOTE = (
    "Each point is a saturated replay with a limit of requests at once, the last with the deployment's own. "
    "A ring may be cheaper than the table, which takes each system's own limit of requests. "
    "Bands and bars are where points lie if all times are off by the model's error"
)


def cost_chart(named: Sequence[tuple[str, Curve]], slo_tbt_ms: float) -> Chart:
    """Return a line for each curve with what the model's error allows, and a ring for the best in time."""
    used: Counter[str] = Counter()
    others = iter(OTHERS * len(named))
    strangers = {each.system: next(others) for _, each in named if each.system not in COLOURS}
    traces: list[PlotlyJson] = []
    rings: list[tuple[float, float]] = []
    for name, each in named:
        colour = COLOURS.get(each.system) or strangers[each.system]
        dash = DASHES[used[each.system] % len(DASHES)]
        used[each.system] += 1
        best = each.cheapest(slo_tbt_ms)
        ends = (1 / (1 + each.error), 1 + each.error) if each.error else ()
        if ends:
            traces.append(_band(each, ends, colour))
        if ends and best is not None:
            traces.append(_bar(best, ends, colour))
        traces.append(_curve(name, each, colour, dash))
        if best is not None:
            rings.append((1000 * best.tbt_s, best.dollars_per_million))
    if rings:
        x, y = zip(*rings, strict=True)
        ring = marks("cheapest within the limit", x, y, color="#b8578f", symbol="circle-open", size=18)
        ring["marker"]["line"] = {"width": 2.5}
        traces.append({**ring, "hoverinfo": "skip"})
    # Up to each curve's cheapest point, and to the limit: what is slower and dearer is of no use.
    slowest = max((1000 * point.tbt_s for _, each in named if (point := each.cheapest())), default=0.0)
    layout = {
        "xaxis": axis("time between tokens (p99), ms", range=[0, 1.08 * max(slowest, slo_tbt_ms)]),
        "yaxis": axis("$ a million tokens", type="log", tickformat="~g"),
        "hovermode": "closest",
        **dotted_line(slo_tbt_ms, f"limit, {slo_tbt_ms:g} ms"),
    }
    errors = {each.system: each.error for _, each in named}
    known = [f"{system} {error:.1%}" for system, error in errors.items() if error is not None]
    unknown = [f"not known of {system}" for system, error in errors.items() if error is None]
    about = ", ".join([*known, *unknown])
    return Chart(
        "curves",
        "Cost and time between tokens, saturated",
        f"Lines of dollars a million tokens by time between tokens: {_words(named, slo_tbt_ms)}",
        " ".join((f"{_NOTE}: {about}.", *dict.fromkeys(_within(named, slo_tbt_ms)))),
        traces,
        layout,
        420,
    )


def _curve(name: str, curve: Curve, colour: str, dash: str) -> PlotlyJson:
    text = [
        f"<b>{label(name)}</b><br>at most {each.batch:,} requests at once, {each.mean_batch:,.0f} in the mean"
        f"<br>{each.tokens_per_s:,.0f} tokens/s"
        for each in curve.points
    ]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label(name),
        "x": rounded(1000 * each.tbt_s for each in curve.points),
        "y": rounded(each.dollars_per_million for each in curve.points),
        "line": {"color": colour, "dash": dash, "width": 2.5},
        "marker": {"color": colour, "size": 7},
        "text": text,
        "hovertemplate": "%{text}<br>p99 %{x:,.1f} ms, $%{y:,.3f} a million tokens<extra></extra>",
    }


def _band(curve: Curve, ends: Sequence[float], colour: str) -> PlotlyJson:
    """Return where the curve is within the error: longer times make tokens slower and dearer at once."""
    low, high = ([(each, scale) for each in curve.points] for scale in ends)
    return {
        **_scaled([*low, *reversed(high)]),
        "mode": "lines",
        "fill": "toself",
        "fillcolor": colour,
        "line": {"width": 0},
        "opacity": 0.13,
    }


def _bar(best: CurvePoint, ends: Sequence[float], colour: str) -> PlotlyJson:
    """Return the error bar of a point."""
    line = {"color": colour, "width": 1.2}
    return {**_scaled([(best, scale) for scale in ends]), "mode": "lines", "line": line}


def _scaled(points: Sequence[tuple[CurvePoint, float]]) -> PlotlyJson:
    return {
        "type": "scatter",
        "name": "error",
        "showlegend": False,
        "hoverinfo": "skip",
        "x": rounded(1000 * each.tbt_s * scale for each, scale in points),
        "y": rounded(each.dollars_per_million * scale for each, scale in points),
    }


def _within(named: Sequence[tuple[str, Curve]], slo_tbt_ms: float) -> Iterator[str]:
    """Yield the deployments that meet the limit only with fewer requests at once than they take."""
    for _, each in named:
        best = each.cheapest(slo_tbt_ms)
        if best is not None and 1000 * each.points[-1].tbt_s > slo_tbt_ms:
            where = f"{each.system} {each.deployment}"
            yield f"{where} is within the limit with at most {best.batch:,} requests at once."


def _words(named: Sequence[tuple[str, Curve]], slo_tbt_ms: float) -> str:
    """Return the chart's message in words."""
    sentences = []
    for name, each in named:
        best = each.cheapest(slo_tbt_ms)
        within = (
            "nothing" if best is None else f"${best.dollars_per_million:.3g} at {1000 * best.tbt_s:.3g} ms"
        )
        sentences.append(f"{name}, cheapest within {slo_tbt_ms:g} ms: {within}")
    return "; ".join(sentences)
