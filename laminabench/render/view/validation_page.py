"""The page of a validation: errors against recorded, published and measured numbers."""

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
from laminabench.render.view.folder import Entry
from laminabench.render.view.page import Page
from laminabench.workflows.validate.stored import StoredValidation, read_validation


def page(entry: Entry, query: QueryParams) -> Page:  # noqa: ARG001 - there is nothing to choose
    """Return a section for each kind that was validated; numbers are errors in percent unless labelled."""
    validation = read_validation(entry.path)
    sections = [
        Section(title, joined((grid(charts), sheet_table(sheet, "numbers errors"))), charts)
        for (title, charts), sheet in zip(_kinds(validation), sheets_of(validation), strict=True)
    ]
    about = tag(
        "p",
        tag("span", "modelled", class_="badge"),
        " beside ",
        tag("span", "measured", class_="badge measured"),
        ": predicted / measured - 1, in percent. Nothing in a cost set is fitted to what it is held against.",
        class_="kinds",
    )
    command = tag("pre", validation.command, tabindex="0")
    provenance = tag("section", tag("h2", "Provenance"), command) if validation.command else ""
    body = joined((about, *(each.html() for each in sections), provenance))
    return Page(f"Validation {entry.path.name}", body, [chart for each in sections for chart in each.charts])


def _kinds(validation: StoredValidation) -> Iterator[tuple[str, Sequence[Chart]]]:
    """Yield heading and charts of each kind, in the order of its sheets."""
    if validation.recorded:
        yield "Recorded runs", list(recorded_charts(validation.recorded))
    if validation.published:
        yield "Published numbers", [published_chart(validation.published)]
    if validation.serving is not None:
        yield (
            "Servers under load",
            [serving_chart(validation.serving.groups, metric) for metric in ("tpot", "ttft")],
        )
    if validation.twin:
        yield "Twins: live replays of this machine", list(twin_charts(validation.twin))
    if validation.emulated:
        yield "The engine on emulated devices", []
