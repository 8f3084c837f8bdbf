"""A plan's candidates at some prices: the chart of cost and speed, and the table; plan.js changes both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from laminabench.present.numbers import share
from laminabench.report.chart import Chart, PlotlyJson, axis, dotted_line, label, rounded
from laminabench.report.markup import Markup, exactly, tag, text
from laminabench.report.shown import COLOURS, OTHERS
from laminabench.workflows.plan.kept import KeptEffect, KeptPlan, KeptPoint
from laminabench.workflows.plan.reprice import Billed, Cost, Front, Speed

COSTS: Mapping[Cost, str] = {"usd_per_million_tokens": "$ a million tokens", "usd_per_hour": "$ an hour"}
SPEEDS: Mapping[Speed, str] = {"tbt_p99_ms": "TBT p99 in ms", "tokens_per_s": "tokens/s"}
# Not by colour alone.
SYMBOLS = {
    "lamina": "circle",
    "lamina-v1": "square",
    "vllm": "triangle-up",
    "h2m2": "diamond",
    "afd": "cross",
}
# Seen on light and on dark.
_QUIET, _LINE, _WINNER = "#8a929b", "#7d8790", "#b8578f"
ASSUMED = "*"


def speed_of(each: Billed, speed: Speed) -> float:
    return each.point.tbt_p99_ms if speed == "tbt_p99_ms" else each.point.tokens_per_s


def front_chart(plan: KeptPlan, found: Front, cost: Cost, speed: Speed) -> Chart:
    """All candidates, the front as numbered steps, the winner in a ring. `meta.role` is for the script."""
    meeting = [i for i, each in enumerate(found.all) if each.point.meets(plan.slo_tbt_p99_ms)]
    met = set(meeting)
    missing = [i for i in range(len(found.all)) if i not in met]

    def places(some: Sequence[int]) -> dict[str, object]:
        return {
            "x": rounded(speed_of(found.all[i], speed) for i in some),
            "y": rounded(getattr(found.all[i], cost) for i in some),
            "customdata": list(some),
        }

    def marks(name: str, some: Sequence[int], **marker: object) -> PlotlyJson:
        return {
            "type": "scatter",
            "mode": "markers",
            "name": label(name),
            **places(some),
            "text": [_pointed_at(found.all[i].point, plan) for i in some],
            "hovertemplate": f"%{{text}}<br>%{{y:,.3f}} {COSTS[cost]}<extra></extra>",
            "marker": {"size": 8, **marker},
            "meta": {"role": "all"},
        }

    systems = dict.fromkeys(found.all[i].point.system for i in meeting)
    others = iter(OTHERS * len(systems))
    traces = [
        marks(
            system,
            [i for i in meeting if found.all[i].point.system == system],
            color=COLOURS.get(system) or next(others),
            symbol=SYMBOLS.get(system, "star"),
            opacity=0.7,
        )
        for system in systems
    ]
    if missing:
        traces.append(marks("misses a limit", missing, color=_QUIET, symbol="circle-open", opacity=0.5))
    traces.append(
        {
            "type": "scatter",
            "mode": "lines+markers+text",
            "name": "front",
            **places(found.on),
            "text": [str(number + 1) for number in range(len(found.on))],
            "textposition": "bottom left",
            "textfont": {"size": 13},
            "line": {"color": _LINE, "width": 1.5, "shape": "hv"},
            # So that numbers keep off the marks that they are about.
            "marker": {"size": 14, "color": "rgba(0,0,0,0)"},
            "hoverinfo": "skip",
            "meta": {"role": "front"},
        }
    )
    won = [] if found.winner is None else [found.winner]
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "winner",
            **places(won),
            "marker": {"symbol": "circle-open", "size": 20, "line": {"width": 3}, "color": _WINNER},
            "hoverinfo": "skip",
            "meta": {"role": "winner"},
        }
    )
    limit = plan.slo_tbt_p99_ms
    drawn = dotted_line(limit, f"limit, {limit:g} ms") if speed == "tbt_p99_ms" else {}
    # Tokens for nothing have no place on a logarithmic axis.
    scale = "log" if all(getattr(each, cost) > 0 for each in found.all) else "linear"
    layout = {
        "xaxis": axis(SPEEDS[speed], rangemode="tozero"),
        "yaxis": axis(COSTS[cost], type=scale, tickformat="~g"),
        "hovermode": "closest",
        **drawn,
    }
    names = ", ".join(found.all[i].point.candidate for i in found.on) or "nobody"
    return Chart(
        "front",
        f"{COSTS[cost]} and {SPEEDS[speed]}",
        f"Scatter of {len(found.all)} candidates; on the front, from the fastest on: {names}",
        "Numbers are the rows of the table; the steps join candidates that no other one beats in both.",
        traces,
        layout,
        440,
    )


def _pointed_at(point: KeptPoint, plan: KeptPlan) -> str:
    binds = f"<br>{_bound(point.binds, plan)}" if point.binds else ""
    return (
        f"<b>{label(point.candidate)}</b><br>{point.tokens_per_s:,.0f} tokens/s, TBT p99 "
        f"{point.tbt_p99_ms:,.1f} ms{binds}"
    )


def _gains(effect: KeptEffect, plan: KeptPlan) -> str:
    """What a tenth more brings; in an open replay tokens are given, and time can be gained."""
    if plan.mode != "open":
        return f"{effect.throughput_gain:+.1%} tokens/s"
    if effect.ttft_p99_gain is not None and plan.slo_ttft_p99_ms:
        return f"{-effect.tbt_p99_gain:+.1%} TBT p99, {-effect.ttft_p99_gain:+.1%} TTFT p99"
    return f"{-effect.tbt_p99_gain:+.1%} TBT p99"


def _bound(binds: Sequence[KeptEffect], plan: KeptPlan) -> str:
    return f"{binds[0].resource} binds: {_gains(binds[0], plan)} for a tenth more"


def binds_of(point: KeptPoint, plan: KeptPlan) -> Markup:
    """What binds first, and what is next; words where that was not looked into."""
    if not point.binds:
        return tag("span", "not looked into", class_="quiet")
    first, *rest = point.binds
    after = f"then {rest[0].resource} {_gains(rest[0], plan)}" if rest else ""
    then = tag("span", after, class_="quiet")
    return tag("span", tag("strong", first.resource), f" {_gains(first, plan)}", tag("br"), then)


def front_table(plan: KeptPlan, found: Front, *, every: bool) -> Markup:
    """A row a candidate, those of the front first and numbered; the others are there for the script."""
    prompts = any(each.point.ttft_p99_ms is not None for each in found.all)
    header = (
        *("#", "candidate", "$ an hour", "$ a million tokens", "tokens/s", "mean batch", "TBT p50, ms"),
        *("TBT p99, ms", "in limit"),
        *(("TTFT p99, ms",) if prompts else ()),
        "a tenth more of what binds",
    )
    rest = sorted(set(range(len(found.all))) - set(found.on), key=lambda i: found.all[i].order)
    head = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in header)))
    rows = (_row(plan, found, i, prompts) for i in (*found.on, *rest))
    caption = "The front, from the fastest on" + (", then all others that were replayed" if every else "")
    whole = tag(
        "table",
        tag("caption", caption),
        head,
        tag("tbody", *rows),
        class_="numbers" if every else "numbers front-only",
        id="candidates",
    )
    return tag("div", whole, class_="scrolls", tabindex="0", role="region", aria_label="Candidates")


def _row(plan: KeptPlan, found: Front, i: int, prompts: bool) -> Markup:
    each, point = found.all[i], found.all[i].point
    number = found.on.index(i) + 1 if i in found.on else None
    cells = (
        tag("td", "" if number is None else number, class_="place"),
        tag(
            "th",
            point.candidate,
            ASSUMED if point.assumed_devices else "",
            tag("span", "winner", class_="badge measured won", hidden=i != found.winner),
            scope="row",
        ),
        _number(each.usd_per_hour, f"{each.usd_per_hour:,.2f}", "hour"),
        _number(each.usd_per_million_tokens, f"{each.usd_per_million_tokens:,.3f}", "million"),
        _number(point.tokens_per_s, f"{point.tokens_per_s:,.0f}"),
        _number(point.mean_batch, f"{point.mean_batch:,.0f}"),
        _number(point.tbt_p50_ms, f"{point.tbt_p50_ms:,.1f}"),
        _number(point.tbt_p99_ms, f"{point.tbt_p99_ms:,.1f}"),
        _number(point.token_attainment, share(point.token_attainment)),
        *((_number(point.ttft_p99_ms, f"{point.ttft_p99_ms or 0:,.0f}"),) if prompts else ()),
        tag("td", binds_of(point, plan), class_="binds"),
    )
    return tag("tr", *cells, data_i=i, class_=None if number is None else "on-front")


def _number(value: float | None, written: str, name: str | None = None) -> Markup:
    return tag("td", exactly(value, written), class_=f"number {name}" if name else "number")


def assumed(points: Iterable[KeptPoint]) -> Markup:
    """Return the note on devices of which the cost set has no measurements."""
    names = sorted({device for point in points for device in point.assumed_devices})
    if not names:
        return text("")
    return tag(
        "p",
        f"{ASSUMED} {', '.join(names)}: not measured in this cost set, its coefficients are another's.",
        class_="quiet",
    )
