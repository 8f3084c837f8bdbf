"""Charts of how a token's time and money divide into parts."""

from __future__ import annotations

from collections.abc import Sequence

from laminabench.render.charts.chart import Chart, PlotlyJson, axis, bar, label
from laminabench.render.format import number4, share
from laminabench.render.model import listed
from laminabench.render.shown import Shown

# Distinct from systems' colours (after Tol); contrast 3:1 against white and against dark.
PARTS = {
    "model": "#6470c4",
    "attention": "#1a9a8a",
    "network": "#b0821c",
    "host": "#c0608f",
    "waiting": "#868e96",
}
# Smaller shares are not written.
_SHOWN = 0.0005
# Room next to the longest bar, for its number.
_ROOM = 1.35
_ROW_PX, _REST_PX = 64, 100
_NAMES = {"type": "category", "automargin": True, "autorange": "reversed"}


def time_charts(runs: Sequence[Shown]) -> list[Chart]:
    """Return the parts of a token's time, one bar per Run; nothing for Runs that made no token."""
    known = any(_spoken(each) for each in runs)
    return [_time_chart(runs)] if known else []


def _time_chart(runs: Sequence[Shown]) -> Chart:
    traces: list[PlotlyJson] = []
    for part, colour in PARTS.items():
        shares = [getattr(each.summary.time_shares, part) for each in runs]
        traces.append(key_of(part, colour))
        traces += [
            bar(
                each,
                part,
                [wrapped(each.name)],
                [fraction],
                legendgroup=part,
                marker={"color": colour},
                text=[share(fraction) if fraction >= 0.06 else ""],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                textfont={"color": "#ffffff", "size": 12},
                hovertemplate=f"{part} %{{x:.1%}}",
            )
            for each, fraction in zip(runs, shares, strict=True)
            if fraction is not None
        ]
    words = [f"{each.name} {_spoken(each)}" for each in runs]
    overlaps = [(each.name, each.summary.time_shares.overlapped or 0.0) for each in runs]
    overlapped = [f"{name} by {share(fraction)}" for name, fraction in overlaps if fraction >= _SHOWN]
    more = ""
    if overlapped:
        more = f" Parts that ran at the same time add up to more than all: {listed(overlapped)}."
    if any(each.manifest.backend != "modelled" for each in runs):
        more += " A live replay cannot tell network from waiting."
    return Chart(
        "time",
        "A token's time",
        f"Where a token's time goes: {listed(words)}.",
        f"Shares of the iterations' time in the steady window, each part as if alone; waiting is what no "
        f"part accounts for.{more}",
        traces,
        {
            "barmode": "stack",
            "uniformtext": {"minsize": 11, "mode": "hide"},
            "xaxis": axis("share of a token's time", tickformat=".0%"),
            "yaxis": _NAMES,
        },
        height_px=_ROW_PX * len(runs) + _REST_PX,
    )


def cost_charts(runs: Sequence[Shown]) -> list[Chart]:
    quantities = (
        ("price", "usd_per_hour", "Price of the deployment", "$ an hour"),
        ("cost", "usd_per_million_tokens", "Cost of tokens", "$ a million tokens"),
    )
    charts = []
    for key, name, title, unit in quantities:
        known = [(each, usd) for each in runs if (usd := getattr(each.summary.cost, name)) is not None]
        if known:
            charts.append(_bars(key, title, unit, known, len(runs)))
    return charts


def key_of(part: str, colour: str) -> PlotlyJson:
    """Return the legend key that all bars of a part share, whichever Runs are shown."""
    return {
        "type": "bar", "name": part, "legendgroup": part, "x": [None], "y": [None],
        "marker": {"color": colour}, "hoverinfo": "skip",
    }  # fmt: skip


def wrapped(name: str) -> str:
    """Wrap a name to fit next to an axis."""
    return "<br>".join(label(part) for part in name.replace(", ", " ").split(" "))


def _bars(key: str, title: str, unit: str, known: Sequence[tuple[Shown, float]], of: int) -> Chart:
    filled = {"fillmode": "overlay", "fgcolor": "#ffffff", "fgopacity": 0.5, "size": 7}
    traces = [
        bar(
            each,
            label(each.name),
            [wrapped(each.name)],
            [value],
            marker={"color": each.colour, "pattern": {"shape": each.pattern, **filled}},
            text=[f"${number4(value)}"],
            textposition="outside",
            cliponaxis=False,
            textangle=0,
            textfont={"size": 13},
            hovertemplate=f"${value:,.4f} {unit[2:]}",
        )
        for each, value in known
    ]
    words = [f"{each.name} ${number4(value)}" for each, value in known]
    without = " Runs on devices without a price are left out." if len(known) < of else ""
    return Chart(
        key,
        title,
        f"{title}, {unit}: {listed(words)}.",
        f"Prices are below, with source and date.{without}",
        traces,
        {
            "xaxis": axis(unit, range=[0, _ROOM * max(value for _, value in known) or 1], tickprefix="$"),
            "yaxis": _NAMES,
        },
        height_px=_ROW_PX * len(known) + _REST_PX,
    )


def _spoken(each: Shown) -> str:
    shares = {part: getattr(each.summary.time_shares, part) for part in PARTS}
    return " ".join(f"{part} {share(fraction)}" for part, fraction in shares.items() if fraction is not None)
