"""The report: one HTML file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from laminabench.render.charts.chart import Chart
from laminabench.render.charts.timeline import default_window_s
from laminabench.render.html import Markup, document, joined, script_data, sentences, sheet_table, tag
from laminabench.render.model import Sheet, listed
from laminabench.render.sections import (
    Section,
    curves_of,
    drawn,
    opening,
    origins,
    run_keys,
    section,
    timeline,
)
from laminabench.render.shown import Shown, caveats
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError
from laminabench.workflows.compare.curves import curve_of_run


class Lead(NamedTuple):
    """The answer of the comparison that the Runs come from, shown above them."""

    verdicts: Sequence[str]
    sheets: Sequence[Sheet]
    notes: Sequence[str]
    by_load: bool = False  # whether Runs are compared within a load only

    def html(self, picture: Section | None) -> Markup:
        paragraphs = (tag("p", each, class_="verdict") for each in self.verdicts)
        inside = picture.inside if picture else ""
        return section("Answer", *paragraphs, inside, *map(sheet_table, self.sheets), sentences(self.notes))


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    runs: list[Shown]
    window_s: tuple[float, float]
    caveats: list[str]
    lead: Lead | None = None
    picture: Section | None = None  # opens the page


def report(
    runs: list[Shown],
    title: str | None,
    window_s: tuple[float, float] | None,
    lead: Lead | None = None,
    picture: Section | None = None,
) -> Report:
    """Make the report of these Runs; title, window and picture default to theirs."""
    names = listed([each.name for each in runs])
    picture = picture or curves_of(runs, (curve_of_run(each.run) for each in runs))
    return Report(title or names, runs, window_s or default_window_s(runs), caveats(runs), lead, picture)


def write_page(content: Report, target: Path) -> int:
    """Write the page atomically, and return its size in bytes."""
    written = page(content).encode("utf-8")
    with replacing(target) as temporary:
        temporary.write_bytes(written)
    return len(written)


def page(content: Report) -> str:
    """Return the HTML, which runs only the two scripts whose checksums it states, and loads nothing."""
    scripts = (plotly_script(), _packaged("report.js"))
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    charts, body = _body(content)
    head = (
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("style", Markup(_packaged("report.css"))),
    )
    data = script_data("figures", [chart.figure() for chart in charts])
    return document(content.title, body, data, *(tag("script", Markup(each)) for each in scripts), head=head)


def _body(content: Report) -> tuple[list[Chart], Markup]:
    runs = content.runs
    sections = [
        *opening(runs, content.caveats, by_load=bool(content.lead and content.lead.by_load)),
        *drawn(runs),
        *timeline(runs, content.window_s),
        origins(runs),
    ]
    picture, lead = content.picture, content.lead
    first = lead.html(picture) if lead else picture.html() if picture else ""
    main = tag("main", first, *(each.html() for each in sections))
    if picture:
        sections.insert(0, picture)
    charts = [chart for each in sections for chart in each.charts]
    return charts, joined((_header(content), main, _footer()))


def _header(content: Report) -> Markup:
    kinds = listed(list(dict.fromkeys(each.backend for each in content.runs)))
    number = "1 Run" if len(content.runs) == 1 else f"{len(content.runs)} Runs"
    title = tag(
        "header",
        tag("div", tag("h1", content.title), tag("p", f"{number}, {kinds}", class_="kinds")),
        tag("button", "Dark", type="button", id="theme", hidden=True),
    )
    return joined((title, run_keys(content.runs)))


def _footer() -> Markup:
    words = (
        "TBT is the time between two consecutive tokens of one request, for every token. Modelled numbers "
        "are computed from the coefficients listed above; measured ones are of the machine named there; "
        "emulated ones are of its clock, while workers waited as long as these coefficients say."
    )
    return tag("footer", tag("p", words))


def _packaged(name: str) -> str:
    return (resources.files("laminabench.render") / name).read_text(encoding="utf-8")


def plotly_script() -> str:
    """Return plotly.js, complete, so that nothing has to be loaded."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise UserError(
            "report-needs-plotly",
            "a report needs plotly, which is not installed: pip install 'laminabench[report]'",
        ) from error
    script: str = get_plotlyjs()
    assert "</script" not in script.lower(), "it would end the element that it is in"
    return script
