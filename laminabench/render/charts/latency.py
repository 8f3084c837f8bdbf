"""Charts of times to first token and between tokens: distributions, and shares within each limit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import UNSET

from laminabench.analysis.attainment import cdf, curve, joint
from laminabench.analysis.rates import since_arrival
from laminabench.render.charts.chart import Chart, PlotlyJson, axis, dotted_line, line, rounded
from laminabench.render.format import number4, share
from laminabench.render.model import listed
from laminabench.render.shown import Shown
from laminabench.sim.spec import TICKS_PER_S, Float64

POINTS, LIMITS = 500, 300
# Points further out appear by zooming out (a double click).
_IN_SIGHT = 1.15
_OF_TOKENS = "%{y:.2%} of tokens within %{x:,.4~g} ms"
_OF_REQUESTS = "%{y:.2%} of requests throughout within %{x:,.4~g} ms"
_OF_FIRST = "%{y:.2%} of first tokens within %{x:,.4~g} s"
_OF_BOTH = "%{y:.2%} of requests within both limits at %{x:,.4~g} "
_SHARE = {"tickformat": ".0%", "range": [0, 1.02]}


def cdf_chart(runs: Sequence[Shown]) -> Chart:
    """Return the distribution of all gaps between tokens."""
    limit, traces = runs[0].slo.tbt_ms, []
    for each in runs:
        ms, shares = cdf(each.run.outcome, each.window, POINTS)
        traces.append(line(each, ms, shares, _OF_TOKENS, width=2.5, shape="hv"))
    gaps = [(each.name, each.summary.tbt_ms) for each in runs]
    words = [f"{name} p50 {number4(ms.p50)} ms, p99 {number4(ms.p99)} ms" for name, ms in gaps]
    return Chart(
        "cdf",
        "Time between tokens (TBT)",
        f"Distribution of the time between tokens, with the limit of {limit:g} ms: {listed(words)}.",
        f"Every token of the steady window that has one before it, drawn at up to {POINTS} gaps that "
        "occurred, half of them in the slowest hundredth.",
        traces,
        {
            "xaxis": axis("ms", range=_sight(runs, limit)),
            "yaxis": axis("share of tokens", **_SHARE),
            **dotted_line(limit, f"{limit:g} ms"),
        },
    )


def first_token_chart(runs: Sequence[Shown]) -> Chart | None:
    """Return the distribution of times to first token; None if no Run has prompts.

    With a TTFT limit also the share of requests within both limits, by TTFT limit.
    """
    limit, limit_tbt, traces, words = _limit_ttft(runs), runs[0].slo.tbt_ms, [], []
    for each in filter(_has_prompts, runs):
        waits = since_arrival(each.run.outcome, "first_token_s", each.window)
        at = waits.support(POINTS)
        seconds, shares = at / TICKS_PER_S, waits.shares_at_most(at)
        traces.append(line(each, seconds, shares, _OF_FIRST, width=2.5, shape="hv"))
        p50, p99 = (number4(each.number_at(f"ttft_ms.{point}")) for point in ("p50", "p99"))
        words.append(f"{each.name} p50 {p50} ms, p99 {p99} ms")
        if limit is not None:
            limits = np.unique(np.concatenate([seconds * 1000, [limit]]))
            both = joint(each.run.outcome, each.window).over_ttft(limits, limit_tbt)
            traces.append(_both(each, limits / 1000, both, "s"))
            words[-1] += f", {share(*rounded(both[limits == limit]))} of requests within both limits"
    if not traces:
        return None
    note = "From arrival, waiting included, of every request whose first token came in the steady window."
    if limit is not None:
        note += f" Pale: requests all of whose gaps were within {limit_tbt:g} ms too, of those that finished."
    return Chart(
        "ttft",
        "Time to the first token (TTFT)",
        f"Distribution of the time to the first token: {listed(words)}.",
        note,
        traces,
        {
            "xaxis": axis("s"),
            "yaxis": axis("share of requests", **_SHARE),
            **({} if limit is None else dotted_line(limit / 1000, f"{limit:g} ms")),
        },
    )


def attainment_chart(runs: Sequence[Shown]) -> Chart:
    """Return the share that would be within the limit, by limit."""
    limit, limit_ttft, traces = runs[0].slo.tbt_ms, _limit_ttft(runs), []
    limits = _limits_ms(runs, limit)
    for each in runs:
        attained = curve(each.run.outcome, each.window, limits)
        requests, tokens = attained.request_attainment, attained.token_attainment
        traces += [
            line(each, limits, requests, _OF_REQUESTS, f"{each.name}: requests", width=2.5, shape="hv"),
            line(each, limits, tokens, _OF_TOKENS, f"{each.name}: tokens", width=1, shape="hv"),
        ]
        if limit_ttft is not None and _has_prompts(each):
            both = joint(each.run.outcome, each.window).over_tbt(limits, limit_ttft)
            traces.append(_both(each, limits, both, "ms"))
    words = [
        f"{each.name} {share(each.slo.token_attainment)} of tokens, "
        f"{share(each.slo.request_attainment)} of requests"
        for each in runs
    ]
    note = (
        "Requests all of whose tokens were within the limit (thick), and tokens (thin), in the steady "
        f"window, for {len(limits)} limits."
    )
    if limit_ttft is not None:
        note += f" Pale: requests whose first token came within {limit_ttft:g} ms too."
    return Chart(
        "attainment",
        "Attainment for every limit",
        f"Attainment over limits; at {limit:g} ms {listed(words)}.",
        note,
        traces,
        {
            "xaxis": axis("TBT limit in ms", range=_sight(runs, limit)),
            "yaxis": axis("share in time", **_SHARE),
            **dotted_line(limit, f"{limit:g} ms"),
        },
    )


def _has_prompts(each: Shown) -> bool:
    return each.summary.ttft_ms is not UNSET


def _limit_ttft(runs: Sequence[Shown]) -> float | None:
    """Return the first TTFT limit of any Run; it applies to all of them."""
    return next((each.slo.ttft_ms for each in runs if each.slo.ttft_ms is not UNSET), None)


def _both(each: Shown, limits: Float64, shares: Float64, unit: str) -> PlotlyJson:
    """Return the share of requests within both limits, one of which varies along the chart."""
    name = f"{each.name}: both limits"
    return line(each, limits, shares, _OF_BOTH + unit, name, width=2.5, shape="hv", opacity=0.45)


def _limits_ms(runs: Sequence[Shown], limit: float) -> Float64:
    """Return limits from below the shortest gap to the longest, including the Run's own."""
    ends = [cdf(each.run.outcome, each.window, 2)[0] for each in runs]
    gaps = np.concatenate([*ends, [limit]])
    low, high = max(float(gaps.min()) * 0.9, 1e-6), float(gaps.max())
    fine = np.linspace(low, min(high, _sight(runs, limit)[1]), LIMITS - LIMITS // 6)
    tail = np.geomspace(low, high, LIMITS // 6)
    return np.unique(np.concatenate([fine, tail, [limit]]))


def _sight(runs: Sequence[Shown], limit: float) -> list[float]:
    """Return a range that shows the limit and nearly all gaps; a few outliers must not stretch it."""
    tails = [each.summary.tbt_ms.p99_9 or each.summary.tbt_ms.p99 or 0.0 for each in runs]
    return [0.0, max(*tails, limit) * _IN_SIGHT]
