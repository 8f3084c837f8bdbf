"""The page of a sweep: a metric over any two flags, all points, and the command for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.datastructures import QueryParams

from laminabench.analysis.metrics_table import COLUMNS
from laminabench.render.charts.chart import Chart
from laminabench.render.charts.sweep import lines_chart, map_chart, written
from laminabench.render.charts.sweep_grid import (
    FIXED,
    NO_FLAG,
    Choices,
    choices,
    in_order,
    metrics_of,
    title_of,
    values_of,
)
from laminabench.render.format import short
from laminabench.render.forms import (
    badge,
    check,
    command,
    copies,
    form,
    hidden,
    select,
    submit,
    tiles,
)
from laminabench.render.html import Markup, exactly, joined, scrolling, tag
from laminabench.render.sections import section
from laminabench.render.view.folder import Entry
from laminabench.render.view.page import Page, empty, several
from laminabench.runs.manifest import NUMBERS
from laminabench.workflows.sweep.read import StoredSweep, read_sweep

# The table in the folder has all rows.
MOST_ROWS = 500
PART = "shown"
SCRIPTS = ("sweep.js", "copy.js")


def page(entry: Entry, query: QueryParams) -> Page:
    """Return the page of the query's choices; an unfinished sweep shows its progress."""
    sweep = read_sweep(entry.path)
    title = f"Sweep {entry.path.name}"
    manifest = sweep.manifest
    if sweep.table is None:
        status = (
            f"{sweep.done:,} of {manifest.points:,} points are finished. The table is written after the last."
        )
        again = "If it was interrupted, the same call resumes it:"
        return Page(title, empty(status, again, command(manifest.command)))
    if not metrics_of(sweep):
        errors = dict.fromkeys(error for error in sweep.column("error") if error)
        return Page(title, empty("No point could be replayed.", *errors))
    chosen = choices(sweep, entry.key, query)
    charts = [map_chart(sweep, chosen), lines_chart(sweep, chosen)]
    shown = _shown(sweep, chosen, charts)
    if query.get("part") == PART:
        return Page(title, shown, charts)
    body = joined(
        (
            _about(sweep),
            _form(sweep, chosen),
            tag("div", shown, id=PART),
            section("Provenance", command(sweep.manifest.command)),
        )
    )
    return Page(title, body, charts, scripts=SCRIPTS, evaluates=True)


def _about(sweep: StoredSweep) -> Markup:
    backends = sorted(set(map(str, sweep.column("backend"))))
    failed = sum(error is not None for error in sweep.column("error"))
    lost = f", {failed:,} failed" if failed else ""
    costs = f"; costs {', '.join(sweep.manifest.costs)}" if sweep.manifest.costs else ""
    varied = ", ".join(sweep.manifest.identity.vary)
    words = f" {several(sweep.manifest.points, 'point')}{lost}: {varied}{costs}"
    return tag("p", *(badge(NUMBERS.get(each, each)) for each in backends), words, class_="kinds")


def _form(sweep: StoredSweep, chosen: Choices) -> Markup:
    varied, metrics = sweep.varied, metrics_of(sweep)
    flags = {flag: flag for flag in varied}
    fixed = [
        select(
            f"{FIXED}{flag}",
            flag,
            {"": "best of all"} | {value: value for value in values_of(sweep, flag)},
            chosen.fixed.get(flag, ""),
        )
        for flag in varied
        if flag not in (chosen.x, chosen.y)
    ]
    fields = (
        select("metric", "Metric", {key: title_of(key) for key in metrics}, chosen.metric),
        select("x", "Across", flags, chosen.x),
        select("y", "Up", flags | {NO_FLAG: "(no other)"}, chosen.y or NO_FLAG),
    )
    checks = (check("along", key, title_of(key), checked=key in chosen.along) for key in (*varied, *metrics))
    return form(
        "/sweeps",
        hidden({"at": chosen.at} | ({"sort": chosen.sort} if chosen.sort else {})),
        tag("fieldset", tag("legend", "Map"), *fields, *fixed, submit("Show"), copies("Copy link", "link")),
        tag("details", tag("summary", "Axes of all points"), tag("div", *checks, class_="checks")),
        id="choices",
        class_="choices across",
        data_part=PART,
    )


def _shown(sweep: StoredSweep, chosen: Choices, charts: Sequence[Chart]) -> Markup:
    drawn_map = tag("div", charts[0].html(), class_="charts wide", data_link=chosen.link(point=None))
    lines = tag("div", tag("div", charts[1].html(), class_="charts wide broad"), class_="sideways")
    table = tag("section", tag("h2", "Table"), _table(sweep, chosen), id="table")
    point = _point(sweep, chosen, chosen.point) if chosen.point is not None else ""
    return joined((point, section("Map", drawn_map), section("All points", lines), table))


def _point(sweep: StoredSweep, chosen: Choices, row: int) -> Markup:
    """Return one point: its flags, its result, and the command that repeats it."""
    error = sweep.column("error")[row]
    numbers = (
        (title_of(key), exactly(value, written(key, value)))
        for key in dict.fromkeys((chosen.metric, *(metric.key for metric in COLUMNS.values())))
        if key in sweep.metrics and (value := sweep.column(key)[row]) is not None
    )
    card = tag(
        "div",
        tag("h3", ", ".join(f"{flag}={short(sweep.column(flag)[row])}" for flag in sweep.varied)),
        tag("p", tag("strong", "It failed: "), error) if error else tiles(numbers),
        tag("p", "Repeat it, and keep it as a Run:"),
        command(sweep.command(row), id="command"),
        tag(
            "p", copies("Copy", "command"), tag("a", "Close", href=chosen.link(point=None)), class_="buttons"
        ),
        class_="card point",
    )
    return tag("section", tag("h2", f"Point {row + 1}"), card, id="point")


def _table(sweep: StoredSweep, chosen: Choices) -> Markup:
    """Return the first rows in order; a column's title sorts by it, and again in reverse."""
    keys = [key for key in (metric.key for metric in COLUMNS.values()) if key in sweep.metrics]
    keys += [chosen.metric] * (chosen.metric not in keys)
    columns = [*sweep.varied, *keys]
    rows = in_order(sweep, chosen.sort)
    cells = {name: sweep.column(name) for name in (*columns, "error")}
    head = tag(
        "tr",
        tag("th", "point", scope="col"),
        *(_title(name, chosen, sweep) for name in columns),
    )

    def line(row: int) -> Iterator[Markup]:
        name = tag("a", f"{row + 1}", href=f"{chosen.link(point=row)}#point")
        yield tag("th", name, scope="row")
        for flag in sweep.varied:
            yield tag("td", short(cells[flag][row]))
        if error := cells["error"][row]:
            yield tag("td", tag("strong", "failed: "), error, class_="why", colspan=len(keys))
            return
        for key in keys:
            value = cells[key][row]
            yield tag("td", exactly(value, written(key, value) or "-"), class_="number")

    top = rows[:MOST_ROWS]
    caption = several(len(rows), "point")
    if len(top) < len(rows):
        caption += f"; the first {len(top):,} are here, all in {sweep.directory.name}/sweep.parquet"
    element = tag(
        "table",
        tag("caption", caption),
        tag("thead", head),
        tag(
            "tbody", *(tag("tr", *line(row), class_="shown" if row == chosen.point else None) for row in top)
        ),
        class_="numbers points",
    )
    return scrolling(element, "Points")


def _title(name: str, chosen: Choices, sweep: StoredSweep) -> Markup:
    sense = {name: "descending", f"-{name}": "ascending"}.get(chosen.sort or "")
    other = f"-{name}" if chosen.sort == name else name
    link = tag("a", title_of(name), href=f"{chosen.link(sort=other)}#table")
    return tag("th", link, scope="col", class_=None if name in sweep.varied else "number", aria_sort=sense)
