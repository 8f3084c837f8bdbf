"""The chart of a plan's candidates by cost and speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from laminabench.render.charts.chart import Chart, PlotlyJson, axis, dotted_line, label, marks
from laminabench.render.sheets.plan import binds_of
from laminabench.render.shown import COLOURS, OTHERS
from laminabench.systems.registry import marker
from laminabench.workflows.plan.reprice import Billed, Cost, Front, Speed
from laminabench.workflows.plan.stored import StoredPlan, StoredPoint

COSTS: Mapping[Cost, str] = {"usd_per_million_tokens": "$ a million tokens", "usd_per_hour": "$ an hour"}
SPEEDS: Mapping[Speed, str] = {"tbt_p99_ms": "TBT p99 in ms", "tokens_per_s": "tokens/s"}
# Visible on light and on dark.
_QUIET, _LINE, _WINNER = "#8a929b", "#7d8790", "#b8578f"


def speed_of(each: Billed, speed: Speed) -> float:
    return each.point.tbt_p99_ms if speed == "tbt_p99_ms" else each.point.tokens_per_s


def front_chart(plan: StoredPlan, front: Front, cost: Cost, speed: Speed) -> Chart:
    """Return all candidates, with the front as numbered steps and a ring around the winner."""
    meeting = [i for i, each in enumerate(front.all) if each.point.meets(plan.slo_tbt_p99_ms)]
    met = set(meeting)
    missing = [i for i in range(len(front.all)) if i not in met]

    def placed(name: str, some: Sequence[int], role: str, **marker: object) -> PlotlyJson:
        x = [speed_of(front.all[i], speed) for i in some]
        trace = marks(label(name), x, [getattr(front.all[i], cost) for i in some], **marker)
        return {**trace, "customdata": list(some), "hoverinfo": "skip", "meta": {"role": role}}

    def candidates(name: str, some: Sequence[int], **marker: object) -> PlotlyJson:
        trace = placed(name, some, "all", size=8, **marker)
        text = [_pointed_at(front.all[i].point, plan) for i in some]
        hover = f"%{{text}}<br>%{{y:,.3f}} {COSTS[cost]}<extra></extra>"
        return {**trace, "text": text, "hovertemplate": hover, "hoverinfo": None}

    systems = dict.fromkeys(front.all[i].point.system for i in meeting)
    others = iter(OTHERS * len(systems))
    traces = [
        candidates(
            system,
            [i for i in meeting if front.all[i].point.system == system],
            color=COLOURS.get(system) or next(others),
            symbol=marker(system),
            opacity=0.7,
        )
        for system in systems
    ]
    if missing:
        looks = {"color": _QUIET, "symbol": "circle-open", "opacity": 0.5}
        traces.append(candidates("misses a limit", missing, **looks))
    steps = {
        "mode": "lines+markers+text",
        "text": [str(number + 1) for number in range(len(front.on))],
        "textposition": "bottom left",
        "textfont": {"size": 13},
        "line": {"color": _LINE, "width": 1.5, "shape": "hv"},
    }
    # Offset the numbers from their marks.
    traces.append(placed("front", front.on, "front", size=14, color="rgba(0,0,0,0)") | steps)
    won = [] if front.winner is None else [front.winner]
    ring = {"symbol": "circle-open", "size": 20, "line": {"width": 3}, "color": _WINNER}
    traces.append(placed("winner", won, "winner", **ring))
    limit = plan.slo_tbt_p99_ms
    drawn = dotted_line(limit, f"limit, {limit:g} ms") if speed == "tbt_p99_ms" else {}
    # A cost of zero has no place on a logarithmic axis.
    scale = "log" if all(getattr(each, cost) > 0 for each in front.all) else "linear"
    layout = {
        "xaxis": axis(SPEEDS[speed], rangemode="tozero"),
        "yaxis": axis(COSTS[cost], type=scale, tickformat="~g"),
        "hovermode": "closest",
        **drawn,
    }
    names = ", ".join(front.all[i].point.candidate for i in front.on) or "none"
    return Chart(
        "front",
        f"{COSTS[cost]} and {SPEEDS[speed]}",
        f"Scatter of {len(front.all)} candidates; on the front, from the fastest on: {names}",
        "Numbers are the rows of the table; the steps join candidates that no other one beats in both.",
        traces,
        layout,
        440,
    )


def _pointed_at(point: StoredPoint, plan: StoredPlan) -> str:
    binds = f"<br>binding: {label(str(binds_of(point, plan)))}" if point.binds else ""
    return (
        f"<b>{label(point.candidate)}</b><br>{point.tokens_per_s:,.0f} tokens/s, TBT p99 "
        f"{point.tbt_p99_ms:,.1f} ms{binds}"
    )
