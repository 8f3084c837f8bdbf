"""The sections of a page about Runs: a report has all of them, other pages some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from laminabench.render.charts.breakdown import cost_charts, time_charts
from laminabench.render.charts.chart import Chart
from laminabench.render.charts.cost import cost_chart
from laminabench.render.charts.latency import attainment_chart, cdf_chart, first_token_chart
from laminabench.render.charts.memory import memory_charts
from laminabench.render.charts.over_time import charts as charts_over_time
from laminabench.render.charts.timeline import timeline_chart
from laminabench.render.html import Markup, joined, sheet_table, tag
from laminabench.render.sheets.planned import curves_sheet
from laminabench.render.sheets.replay import fault_sheet
from laminabench.render.sheets.runs import cards, client_sheets, comparison, provenance, swatch
from laminabench.render.shown import Shown
from laminabench.workflows.compare.curves import Curve

# More curves would take long to replay.
MOST_CURVES = 6
# A page shows the first faults only; run.json has all.
_MOST_FAULTS = 50


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page under one heading; its charts are drawn where their `html()` stands."""

    title: str
    inside: Markup
    charts: Sequence[Chart] = ()

    def html(self) -> Markup:
        return section(self.title, self.inside)


def opening(runs: Sequence[Shown], caveats: Sequence[str], *, by_load: bool = False) -> Iterator[Section]:
    """Yield the numbers, after the caveats of comparing them; needs only manifests.

    `by_load`: ratios are within a load, whose first Run is the base.
    """
    notes = tag("ul", *(tag("li", sentence) for sentence in caveats))
    before = tag("aside", notes, class_="caveats", aria_label="Before you compare") if caveats else ""
    yield Section("Headline", joined((cards(runs), before)))
    of_modes: dict[str, list[Shown]] = {}
    for each in runs:
        of_modes.setdefault(each.manifest.workload.mode if by_load else "", []).append(each)
    yield Section("Comparison", joined(map(comparison, of_modes.values())))


def drawn(runs: Sequence[Shown]) -> Iterator[Section]:
    """Yield the sections that need the Runs' tables."""
    first = first_token_chart(runs)
    latency = [cdf_chart(runs), attainment_chart(runs), *([first] if first else [])]
    yield Section("Latency", grid(latency), latency)
    if by_client := client_sheets(runs):
        yield Section("As the client saw it", joined(map(sheet_table, by_client)))
    over_time = charts_over_time(runs)
    yield Section("Over time", grid(over_time), over_time)
    if memory := memory_charts(runs):
        yield Section("Memory", grid(memory), memory)
    faults = [
        sheet_table(fault_sheet(f"Faults of {each.name}", each.summary.fault_costs, _MOST_FAULTS))
        for each in runs
        if each.summary.fault_costs
    ]
    if faults:
        yield Section("Faults", joined(faults))
    spent, costs = time_charts(runs), cost_charts(runs)
    yield Section("Time and cost", joined((grid(spent, wide=True), grid(costs))), [*spent, *costs])


def timeline(runs: Sequence[Shown], window_s: tuple[float, float]) -> Iterator[Section]:
    """Return the timeline's section; nothing if no Run recorded iterations."""
    if not all(each.client_only for each in runs):
        lanes = [timeline_chart(runs, window_s)]
        yield Section("Timeline", grid(lanes, wide=True), lanes)


def curves(named: Sequence[tuple[str, Curve]], slo_tbt_ms: float) -> Section:
    """Return cost against time between tokens, with its points as a table."""
    chart = cost_chart(named, slo_tbt_ms)
    points = sheet_table(curves_sheet(named))
    details = tag("details", tag("summary", "Points of the curves"), points)
    return Section("Cost and speed", joined((grid([chart], wide=True), details)), [chart])


def curves_of(runs: Sequence[Shown], some: Iterable[Curve | None]) -> Section | None:
    """Return the section of the first Runs' curves; None for a single Run, or without curves."""
    if len(runs) < 2:
        return None
    pairs = zip(runs[:MOST_CURVES], some, strict=False)
    named = [(each.name, curve) for each, curve in pairs if curve is not None]
    return curves(named, runs[0].slo.tbt_ms) if named else None


def origins(runs: Sequence[Shown]) -> Section:
    return Section("Provenance", joined(provenance(each) for each in runs))


def section(title: str, *inside: object) -> Markup:
    return tag("section", tag("h2", title), *inside)


def grid(charts: Sequence[Chart], *, wide: bool = False) -> Markup:
    return tag("div", *(chart.html() for chart in charts), class_="charts wide" if wide else "charts")


def run_keys(runs: Sequence[Shown]) -> Markup:
    """Return buttons that show or hide a Run in all charts; they appear with the script."""
    keys = (
        tag("button", swatch(each), " ", each.name, type="button", data_run=each.number, aria_pressed="true")
        for each in runs
    )
    return tag("nav", *keys, aria_label="Runs shown in the charts", id="keys", hidden=True)
