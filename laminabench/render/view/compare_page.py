"""Runs side by side, or one alone: what differs, then numbers, charts and a timeline as a report has them."""

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
from laminabench.render.sections import drawn, opening, origins, run_keys, timeline
from laminabench.render.sheets.runs import swatch
from laminabench.render.shown import Shown, caveats
from laminabench.render.view.facts import Facts
from laminabench.render.view.folder import Found
from laminabench.render.view.index import Index
from laminabench.render.view.opened import at_a_glance, chosen, whole
from laminabench.render.view.page import Page, address, several
from laminabench.requests.replay import seconds
from laminabench.util.errors import UserError

# Parts of a manifest that say what a Run is of; its numbers are results, and compared as such.
_ASKED = (
    *("system", "backend", "deployment.name", "model.name"),
    *("trace.", "transforms.", "workload.", "request."),
)
_FOLLOWING = ("deployment.", "model.", "laminabench.", "host.", "seed", "partial.")
_TRANSFORMS = (
    *("num-requests", "scale-lengths", "rate-scale", "request-rate", "burstiness", "sample", "seed"),
)
# What the request says in other words.
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
# With more Runs, how many have a value is told, and not which.
MOST_BESIDE = 8
_MOST_VALUES = 12
# In a chart with more lines nobody tells them apart.
MOST_CHARTED = 12
# A title with more names than these is no title.
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """What the address says."""

    found: list[Found]  # the base first
    slo_tbt_ms: float | None
    window_s: tuple[float, float] | None

    def items(self, **changed: object) -> dict[str, object]:
        """As an address like it has them."""
        items: dict[str, object] = {"run": [each.key for each in self.found]}
        if self.slo_tbt_ms is not None:
            items["slo"] = f"{self.slo_tbt_ms:.12g}"
        if self.window_s is not None:
            items["window"] = window_text(self.window_s)
        return {**items, **changed}

    def address(self, **changed: object) -> str:
        return address("/compare", self.items(**changed))


def choice(index: Index, query: QueryParams) -> Choice:
    """A UserError says what makes no sense."""
    found = chosen(index, query.getlist("run"))
    if base := query.get("base"):
        found.sort(key=lambda each: each.key != base)
    window = query.get("window", "").strip()
    return Choice(found, _slo(query.get("slo", "").strip()), seconds(window, "window") if window else None)


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
    """As --window takes it."""
    start_s, end_s = window_s
    if math.isinf(end_s):
        return f"{start_s:.9g}:"
    # A thousandth of it is less than can be seen.
    digits = max(0, 4 - math.floor(math.log10(end_s - start_s))) if end_s > start_s else 9
    return ":".join(f"{round(at_s, digits):.12g}" for at_s in window_s)


def compare_page(index: Index, query: QueryParams) -> Page:
    """The page; its charts come when the numbers are there."""
    asked = choice(index, query)
    match query.get("part"):
        case "charts":
            return _charts(asked)
        case "lanes":
            return _lanes(asked, whole(asked.found[:MOST_CHARTED], asked.slo_tbt_ms))
    runs = at_a_glance(asked.found, asked.slo_tbt_ms)
    rows = [index.whole_row(each.key) for each in asked.found]
    facts = [row.facts for row in rows if row is not None and row.damage is None]
    if len(facts) < len(runs):  # or columns would be of other Runs than their titles say
        raise UserError("view-not-there", "a selected Run has gone, or is being replaced: reload the page")
    lazily = asked.address(part="charts")
    waiting = tag("p", "Charts are drawn here as soon as they are there.", class_="kinds")
    without = tag("p", "They need JavaScript; their tables are in the export.", class_="missing")
    body = (
        _controls(asked, runs),
        differences_section(runs, facts),
        *(section.html() for section in opening(runs, caveats(runs))),
        tag("div", waiting, tag("noscript", without), id="charts", data_lazy=lazily),
    )
    return Page(_title(runs), joined(body), plotly=True, keys=_keys(runs))


def export(index: Index, query: QueryParams) -> str:
    """What `laminabench report` makes of the same Runs, limit and window."""
    asked = choice(index, query)
    runs = whole(asked.found, asked.slo_tbt_ms)
    return reports.page(reports.report(runs, query.get("title") or None, closed(asked.window_s, runs)))


def _title(runs: Sequence[Shown]) -> str:
    return listed([each.name for each in runs]) if len(runs) <= _MOST_NAMED else several(len(runs), "Run")


def _keys(runs: Sequence[Shown]) -> Markup | None:
    return run_keys(runs[:MOST_CHARTED]) if len(runs) > 1 else None


def _controls(asked: Choice, runs: Sequence[Shown]) -> Markup:
    kept = asked.items()
    kept.pop("slo", None)
    names = {found.key: each.name for each, found in zip(runs, asked.found, strict=True)}
    limit = {"value": f"{runs[0].slo.tbt_ms:g}", "min": "0.001", "step": "any", "class_": "short"}
    fields = (
        select("base", "Base", names, asked.found[0].key) if len(runs) > 1 else "",
        tag("label", "TBT limit, ms ", for_="slo"),
        tag("input", type="number", name="slo", id="slo", **limit),
        submit("Apply", main=True),
        submit("Export as a report", action="/export"),
    )
    return form("/compare", hidden(kept), line(*fields))


def _charts(asked: Choice) -> Page:
    runs = whole(asked.found[:MOST_CHARTED], asked.slo_tbt_ms)
    sections = list(drawn(runs))
    lanes = _lanes(asked, runs)
    left = len(asked.found) - len(runs)
    words = f"Charts are of the first {len(runs)} Runs; {left:,} more are in the numbers above."
    cut = tag("p", words, class_="cut")
    parts = [section.html() for section in sections]
    if lanes.body:
        head = tag("h2", "Timeline")
        parts.append(tag("section", head, tag("div", lanes.body, id="lanes"), id="timeline-section"))
    body = joined([cut if left else "", *parts, origins(runs).html()])
    return Page("Charts", body, [*(chart for each in sections for chart in each.charts), *lanes.charts])


def _lanes(asked: Choice, runs: Sequence[Shown]) -> Page:
    """The timeline with what moves its window."""
    window_s = closed(asked.window_s, runs) or default_window_s(runs)
    found = [chart for section in timeline(runs, window_s) for chart in section.charts]
    if not found:
        return Page("Timeline", joined(()))
    body = joined(
        (_moves(asked, window_s), *(tag("div", chart.html(), class_="charts wide") for chart in found))
    )
    return Page("Timeline", body, found)


def _moves(asked: Choice, window_s: tuple[float, float]) -> Markup:
    start_s, end_s = window_s
    middle, half = (start_s + end_s) / 2, (end_s - start_s) / 2
    moves = {
        "Earlier": (start_s - half, end_s - half),
        "Later": (start_s + half, end_s + half),
        "Zoom in": (middle - half / 2, middle + half / 2),
        "Zoom out": (middle - 2 * half, middle + 2 * half),
    }
    addresses = {name: asked.address(window=window_text(_from_zero(to))) for name, to in moves.items()}
    links = (
        tag("a", name, href=href, data_part="lanes", class_="button") for name, href in addresses.items()
    )
    kept = asked.items()
    kept.pop("window", None)
    own = {"value": window_text(window_s), "class_": "short", "autocomplete": "off"}
    field = tag("input", name="window", id="window", **own)
    label = tag("label", "Seconds, from:to", for_="window")
    inside = (hidden(kept), line(*links, label, field, submit("Show")))
    return form("/compare", *inside, data_part="lanes")


def _from_zero(window_s: tuple[float, float]) -> tuple[float, float]:
    """Not before the replay began, and as long as it was."""
    start_s, end_s = window_s
    return (start_s, end_s) if start_s >= 0 else (0.0, end_s - start_s)


def differences_section(runs: Sequence[Shown], facts: Sequence[Facts]) -> Markup:
    """Nothing of one Run alone."""
    if len(runs) < 2:
        return joined(())
    differing = _differing(facts)
    first = {name: values for name, values in differing.items() if name.startswith(_ASKED)}
    rest = {name: values for name, values in differing.items() if name not in first}
    if not differing:
        inside = [tag("p", "Nothing: their manifests say the same of trace, system, model and choices.")]
    elif first:
        inside = [_table("Of what was asked for", runs, first)]
    else:
        inside = [tag("p", "Nothing that was asked for.")]
    if rest:
        words = f"{several(len(rest), 'field')} more: what follows from these, machine and version"
        inside.append(
            tag("details", tag("summary", words), _table("Of the rest of the manifests", runs, rest))
        )
    return tag("section", tag("h2", "What differs"), *inside)


def _differing(facts: Sequence[Facts]) -> dict[str, list[str]]:
    names = dict.fromkeys(name for each in facts for name in each if name.startswith((*_ASKED, *_FOLLOWING)))
    found = {}
    for name in sorted(names, key=_place):
        values = [short(each[name]) if name in each else "-" for each in facts]
        if len(set(values)) > 1:
            found[name] = values
    return {name: values for name, values in found.items() if found.get(_AGAIN.get(name, "")) is None}


def _place(name: str) -> tuple[int, str]:
    places = (*_ASKED, *_FOLLOWING)
    return next(place for place, each in enumerate(places) if name.startswith(each)), name


def _table(caption: str, runs: Sequence[Shown], differing: Mapping[str, Sequence[str]]) -> Markup:
    if len(runs) <= MOST_BESIDE:
        header = ["", *(joined((swatch(each), " ", each.name)) for each in runs)]
        rows = [(tag("code", name), *values) for name, values in differing.items()]
        return table(caption, header, rows, "differing")
    counted = [(tag("code", name), len(set(each)), _counted(each)) for name, each in differing.items()]
    return table(caption, ("", "Values", "Runs of each"), counted, "differing")


def _counted(values: Sequence[str]) -> str:
    counts = Counter(values).most_common()
    more = f", and {len(counts) - _MOST_VALUES:,} more" if len(counts) > _MOST_VALUES else ""
    return ", ".join(f"{value} ({count:,})" for value, count in counts[:_MOST_VALUES]) + more
