"""The page of one Run or several: differences, numbers, charts and a timeline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.datastructures import QueryParams

from laminabench.render import report as reports
from laminabench.render.charts.timeline import closed, default_window_s
from laminabench.render.format import short
from laminabench.render.forms import form, hidden, line, select, submit
from laminabench.render.html import Markup, joined, table, tag
from laminabench.render.model import listed
from laminabench.render.sections import MOST_CURVES, curves_of, drawn, opening, origins, run_keys, timeline
from laminabench.render.sheets.runs import swatch
from laminabench.render.shown import Shown, caveats
from laminabench.render.view.facts import Facts
from laminabench.render.view.folder import Entry
from laminabench.render.view.index import Index
from laminabench.render.view.opened import at_a_glance, chosen, curve, with_tables
from laminabench.render.view.page import Page, address, several
from laminabench.requests.replay import seconds
from laminabench.util.errors import UserError

# Parts of a manifest that describe the replay, not its results.
_SETUP = (
    *("system", "backend", "deployment.name", "model.name"),
    *("trace.", "transforms.", "workload.", "request."),
)
_FOLLOWING = ("deployment.", "model.", "laminabench.", "host.", "seed", "partial.")
_TRANSFORMS = (
    *("num-requests", "scale-lengths", "rate-scale", "request-rate", "burstiness", "sample", "seed"),
)
# Request fields that repeat other fields.
_AGAIN = {
    "request.system": "system",
    "request.backend": "backend",
    "request.deployment": "deployment.name",
    "request.model": "model.name",
    "request.trace": "trace.name",
    "request.mode": "workload.mode",
    "request.slo-tbt-ms": "workload.slo_tbt_ms",
    **{f"request.{name}": f"transforms.{name.replace('-', '_')}" for name in _TRANSFORMS},
}
# With more Runs, only the count of each value is shown.
MOST_COLUMNS = 8
_MOST_VALUES = 12
# More lines in a chart are not distinguishable.
MOST_CHARTED = 12
# A title has at most this many names.
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """The choices of a comparison's address."""

    entries: list[Entry]  # the base first
    slo_tbt_ms: float | None
    window_s: tuple[float, float] | None

    def items(self, **changed: object) -> dict[str, object]:
        """Return the parameters of an address with these choices."""
        items: dict[str, object] = {"run": [each.key for each in self.entries]}
        if self.slo_tbt_ms is not None:
            items["slo"] = f"{self.slo_tbt_ms:.12g}"
        if self.window_s is not None:
            items["window"] = window_text(self.window_s)
        return {**items, **changed}

    def address(self, **changed: object) -> str:
        return address("/compare", self.items(**changed))


def choice(index: Index, query: QueryParams) -> Choice:
    """Parse the query; raise UserError if it makes no sense."""
    entries = chosen(index, query.getlist("run"))
    if base := query.get("base"):
        entries.sort(key=lambda each: each.key != base)
    window = query.get("window", "").strip()
    return Choice(entries, _slo(query.get("slo", "").strip()), seconds(window, "window") if window else None)


def _slo(text: str) -> float | None:
    if not text:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 < limit <= 1e9:
        raise UserError("view-slo", f"'{text}' is no limit of TBT: give milliseconds, such as 80")
    return limit


def window_text(window_s: tuple[float, float]) -> str:
    """Format a window for --window."""
    start_s, end_s = window_s
    if math.isinf(end_s):
        return f"{start_s:.9g}:"
    # A thousandth of the window is too small to see.
    digits = max(0, 4 - math.floor(math.log10(end_s - start_s))) if end_s > start_s else 9
    return ":".join(f"{round(at_s, digits):.12g}" for at_s in window_s)


def compare_page(index: Index, query: QueryParams) -> Page:
    """Return the page; its charts are loaded after its numbers."""
    options = choice(index, query)
    match query.get("part"):
        case "charts":
            return _charts(options)
        case "curves":
            return _curves(options)
        case "lanes":
            return _lanes(options, with_tables(options.entries[:MOST_CHARTED], options.slo_tbt_ms))
    runs = at_a_glance(options.entries, options.slo_tbt_ms)
    rows = [index.full_row(each.key) for each in options.entries]
    facts = [row.facts for row in rows if row is not None and row.damage is None]
    if len(facts) < len(runs):  # else columns would not match their titles
        raise UserError("view-not-there", "a selected Run was removed, or is being replaced: reload the page")
    lazily = options.address(part="charts")
    waiting = tag("p", "Charts are drawn here as soon as they are there.", class_="kinds")
    without = tag("p", "They need JavaScript; their tables are in the export.", class_="missing")
    body = (
        _controls(options, runs),
        tag("div", id="curves-part", data_lazy=options.address(part="curves")) if len(runs) > 1 else "",
        differences_section(runs, facts),
        *(section.html() for section in opening(runs, caveats(runs))),
        tag("div", waiting, tag("noscript", without), id="charts", data_lazy=lazily),
    )
    return Page(_title(runs), joined(body), plotly=True, keys=_keys(runs))


def export(index: Index, query: QueryParams) -> str:
    """Return the page that `laminabench report` makes of the same Runs, limit and window."""
    options = choice(index, query)
    runs = with_tables(options.entries, options.slo_tbt_ms)
    return reports.page(reports.report(runs, query.get("title") or None, closed(options.window_s, runs)))


def _title(runs: Sequence[Shown]) -> str:
    return listed([each.name for each in runs]) if len(runs) <= _MOST_NAMED else several(len(runs), "Run")


def _keys(runs: Sequence[Shown]) -> Markup | None:
    return run_keys(runs[:MOST_CHARTED]) if len(runs) > 1 else None


def _controls(options: Choice, runs: Sequence[Shown]) -> Markup:
    items = options.items()
    items.pop("slo", None)
    names = {entry.key: each.name for each, entry in zip(runs, options.entries, strict=True)}
    limit = {"value": f"{runs[0].slo.tbt_ms:g}", "min": "0.001", "step": "any", "class_": "short"}
    fields = (
        select("base", "Base", names, options.entries[0].key) if len(runs) > 1 else "",
        tag("label", "TBT limit, ms ", for_="slo"),
        tag("input", type="number", name="slo", id="slo", **limit),
        submit("Apply", main=True),
        submit("Export as a report", action="/export"),
    )
    return form("/compare", hidden(items), line(*fields))


def _charts(options: Choice) -> Page:
    runs = with_tables(options.entries[:MOST_CHARTED], options.slo_tbt_ms)
    sections = list(drawn(runs))
    lanes = _lanes(options, runs)
    left = len(options.entries) - len(runs)
    words = f"Charts are of the first {len(runs)} Runs; {left:,} more are in the numbers above."
    cut = tag("p", words, class_="cut")
    parts = [section.html() for section in sections]
    if lanes.body:
        head = tag("h2", "Timeline")
        parts.append(tag("section", head, tag("div", lanes.body, id="lanes"), id="timeline-section"))
    body = joined([cut if left else "", *parts, origins(runs).html()])
    return Page("Charts", body, [*(chart for each in sections for chart in each.charts), *lanes.charts])


def _curves(options: Choice) -> Page:
    """Return the chart that opens a comparison; empty where no Run has a curve."""
    entries = options.entries[:MOST_CURVES]
    section = curves_of(with_tables(entries, options.slo_tbt_ms), map(curve, entries))
    return Page("Cost", section.html(), section.charts) if section else Page("Cost", joined(()))


def _lanes(options: Choice, runs: Sequence[Shown]) -> Page:
    """Return the timeline with buttons that move its window."""
    window_s = closed(options.window_s, runs) or default_window_s(runs)
    charts = [chart for section in timeline(runs, window_s) for chart in section.charts]
    if not charts:
        return Page("Timeline", joined(()))
    body = joined(
        (_moves(options, window_s), *(tag("div", chart.html(), class_="charts wide") for chart in charts))
    )
    return Page("Timeline", body, charts)


def _moves(options: Choice, window_s: tuple[float, float]) -> Markup:
    start_s, end_s = window_s
    middle, half = (start_s + end_s) / 2, (end_s - start_s) / 2
    moves = {
        "Earlier": (start_s - half, end_s - half),
        "Later": (start_s + half, end_s + half),
        "Zoom in": (middle - half / 2, middle + half / 2),
        "Zoom out": (middle - 2 * half, middle + 2 * half),
    }
    addresses = {name: options.address(window=window_text(_from_zero(to))) for name, to in moves.items()}
    links = (
        tag("a", name, href=href, data_part="lanes", class_="button") for name, href in addresses.items()
    )
    items = options.items()
    items.pop("window", None)
    own = {"value": window_text(window_s), "class_": "short", "autocomplete": "off"}
    field = tag("input", name="window", id="window", **own)
    label = tag("label", "Seconds, from:to", for_="window")
    inside = (hidden(items), line(*links, label, field, submit("Show")))
    return form("/compare", *inside, data_part="lanes")


def _from_zero(window_s: tuple[float, float]) -> tuple[float, float]:
    """Shift a window to start at 0 or later, with its length unchanged."""
    start_s, end_s = window_s
    return (start_s, end_s) if start_s >= 0 else (0.0, end_s - start_s)


def differences_section(runs: Sequence[Shown], facts: Sequence[Facts]) -> Markup:
    """Return a table of the differing fields; nothing for one Run."""
    if len(runs) < 2:
        return joined(())
    differing = _differing(facts)
    first = {name: values for name, values in differing.items() if name.startswith(_SETUP)}
    rest = {name: values for name, values in differing.items() if name not in first}
    if not differing:
        inside = [tag("p", "Nothing: their manifests say the same of trace, system, model and choices.")]
    elif first:
        inside = [_table("Differences of the requests", runs, first)]
    else:
        inside = [tag("p", "No request differs.")]
    if rest:
        words = f"{several(len(rest), 'field')} more: what follows from these, machine and version"
        inside.append(
            tag("details", tag("summary", words), _table("Differences of the other fields", runs, rest))
        )
    return tag("section", tag("h2", "What differs"), *inside)


def _differing(facts: Sequence[Facts]) -> dict[str, list[str]]:
    names = dict.fromkeys(name for each in facts for name in each if name.startswith((*_SETUP, *_FOLLOWING)))
    rows = {}
    for name in sorted(names, key=_place):
        values = [short(each[name]) if name in each else "-" for each in facts]
        if len(set(values)) > 1:
            rows[name] = values
    return {name: values for name, values in rows.items() if rows.get(_AGAIN.get(name, "")) is None}


def _place(name: str) -> tuple[int, str]:
    places = (*_SETUP, *_FOLLOWING)
    return next(place for place, each in enumerate(places) if name.startswith(each)), name


def _table(caption: str, runs: Sequence[Shown], differing: Mapping[str, Sequence[str]]) -> Markup:
    if len(runs) <= MOST_COLUMNS:
        header = ["", *(joined((swatch(each), " ", each.name)) for each in runs)]
        rows = [(tag("code", name), *values) for name, values in differing.items()]
        return table(caption, header, rows, "differing")
    counted = [(tag("code", name), len(set(each)), _counted(each)) for name, each in differing.items()]
    return table(caption, ("", "Values", "Runs of each"), counted, "differing")


def _counted(values: Sequence[str]) -> str:
    counts = Counter(values).most_common()
    more = f", and {len(counts) - _MOST_VALUES:,} more" if len(counts) > _MOST_VALUES else ""
    return ", ".join(f"{value} ({count:,})" for value, count in counts[:_MOST_VALUES]) + more
