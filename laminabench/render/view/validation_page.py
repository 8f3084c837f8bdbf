"""The page of a validation: how far off the model is, of what was recorded, printed, and measured here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.datastructures import QueryParams

from laminabench.render.charts.chart import Chart
from laminabench.render.charts.validation import (
    published_chart,
    recorded_charts,
    serving_chart,
    twin_charts,
)
from laminabench.render.html import joined, sheet_table, tag
from laminabench.render.sections import Section, grid
from laminabench.render.sheets.validate import sheets_of
from laminabench.render.view.folder import Found
from laminabench.render.view.page import Page
from laminabench.workflows.validate.stored import KeptValidation, read_validation


def page(found: Found, query: QueryParams) -> Page:  # noqa: ARG001 - there is nothing to choose
    """Return a section for each kind that was validated; numbers are errors in percent unless labelled."""
    kept = read_validation(found.path)
    sections = [
        Section(title, joined((grid(charts), sheet_table(sheet, "numbers errors"))), charts)
        for (title, charts), sheet in zip(_kinds(kept), sheets_of(kept), strict=True)
    ]
    about = tag(
        "p",
        tag("span", "modelled", class_="badge"),
        " beside ",
        tag("span", "measured", class_="badge measured"),
        ": predicted / measured - 1, in percent. Nothing in a cost set is fitted to what it is held against.",
        class_="kinds",
    )
    command = tag("pre", kept.command, tabindex="0")
    provenance = tag("section", tag("h2", "Provenance"), command) if kept.command else ""
    body = joined((about, *(each.html() for each in sections), provenance))
    return Page(f"Validation {found.path.name}", body, [chart for each in sections for chart in each.charts])


def _kinds(kept: KeptValidation) -> Iterator[tuple[str, Sequence[Chart]]]:
    """Yield heading and charts of each kind, in the order of its sheets."""
    if kept.recorded:
        yield "Recorded runs", list(recorded_charts(kept.recorded))
    if kept.published:
        yield "Published numbers", [published_chart(kept.published)]
    if kept.serving is not None:
        yield (
            "Servers under load",
            [serving_chart(kept.serving.groups, metric) for metric in ("tpot", "ttft")],
        )
    if kept.twin:
        yield "Twins: live replays of this machine", list(twin_charts(kept.twin))
    if kept.emulated:
        yield "The engine on emulated devices", []
