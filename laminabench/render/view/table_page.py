"""The table of all Runs: search, conditions on any field, any columns, any order, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.datastructures import QueryParams

from laminabench.analysis.metrics_table import METRICS
from laminabench.render.format import number4, share
from laminabench.render.html import Markup, exactly, joined, tag
from laminabench.render.view.asked import USUAL, Asked, address
from laminabench.render.view.facts import BRIEFLY, said
from laminabench.render.view.folder import MOST_FOLDERS
from laminabench.render.view.index import Index, Row
from laminabench.render.view.page import Page, empty, several
from laminabench.render.view.query import in_order, parsed
from laminabench.util.errors import UserError

ROWS = 100
_TITLES = {
    "run": "Run",
    "system": "system",
    "deployment.name": "deployment",
    "model.name": "model",
    "trace.name": "trace",
    "workload.mode": "mode",
    "date": "written",
    **{metric.key: metric.title for metric in METRICS if metric.key and metric.title},
}
_SHARES = {metric.key for metric in METRICS if metric.is_share}


def table_page(index: Index, query: QueryParams) -> Page:
    """The page; with `part=rows` the rows alone, as new Runs appear."""
    wrong = ""
    try:
        asked = Asked(query, index)
        wanted = parsed(asked.text, index)
    except UserError as error:
        wrong, text = str(error), query.get("q", "")
        asked = Asked(QueryParams(), index)
        asked.text, wanted = text, parsed("", index)
    whole = wanted.whole or not BRIEFLY.issuperset([*asked.columns, asked.sort])
    every = index.rows(whole=whole)
    rows = [] if wrong else in_order(wanted.matching(every), asked.sort, down=asked.down)
    if "part" in query:
        return Page("Runs", _results(asked, rows, len(every)))
    if not every:
        why = "There are no Runs in this folder yet: they appear here as soon as there are."
        how = tag(
            "p", "One is made by ", tag("code", "laminabench replay --trace azure-conv --system lamina")
        )
        return Page("Runs", tag("div", empty(why, how), id="rows", data_live="/?part=rows"))
    body = joined(
        (
            _search(asked, wrong),
            tag(
                "p",
                f"There are more than {MOST_FOLDERS:,} folders here: not all were looked into.",
                class_="wrong",
            )
            if index.refreshed().cut
            else "",
            tag(
                "div",
                _results(asked, rows, len(every)),
                id="rows",
                data_live=asked.with_(part="rows", page=asked.page),
            ),
            tag("p", id="news", role="status", class_="spoken"),
        )
    )
    return Page("Runs", body)


def _search(asked: Asked, wrong: str) -> Markup:
    kept = asked.items()
    columns = [tag("input", type="hidden", name="col", value=name) for name in kept.get("col", ())]  # type: ignore[attr-defined]
    order = tag("input", type="hidden", name="sort", value=kept["sort"]) if "sort" in kept else ""
    box = tag(
        "input",
        type="search",
        name="q",
        id="q",
        value=asked.text,
        placeholder="tbt_ms.p99<80 system=lamina azure",
        autocomplete="off",
        spellcheck="false",
        aria_describedby="q-help q-wrong",
        aria_invalid="true" if wrong else None,
    )
    said_wrong = tag("p", wrong, class_="wrong", id="q-wrong", role="alert") if wrong else ""
    words = tag(
        "p",
        "Words are looked for in every field; conditions are like ",
        *_listed("tbt_ms.p99<80", "system=lamina,vllm", "trace=azure*", "request.batches!=1"),
        ".",
        id="q-help",
        class_="kinds",
    )
    label = tag("label", "Search", for_="q", class_="spoken")
    submit = tag("button", "Search", type="submit", class_="main")
    choose = tag("a", "Columns", href=address("/columns", kept), class_="button")
    line = tag("div", label, box, submit, choose, class_="line")
    return tag("form", line, words, said_wrong, *columns, order, method="get", action="/", role="search")


def _listed(*examples: str) -> Iterator[Markup]:
    for place, each in enumerate(examples):
        yield joined((", " if place else "", tag("code", each)))


def _results(asked: Asked, rows: Sequence[Row], of: int) -> Markup:
    pages = max(1, -(-len(rows) // ROWS))
    at = min(max(asked.page, 1), pages)
    shown = rows[(at - 1) * ROWS : at * ROWS]
    count = several(of, "Run") if len(rows) == of else f"{len(rows):,} of {several(of, 'Run')}"
    if pages > 1:
        count += f", {(at - 1) * ROWS + 1:,} to {(at - 1) * ROWS + len(shown):,}"
    bar = tag(
        "div",
        tag("strong", count),
        tag("span", class_="selected", data_selected=True),
        tag("button", "Compare", type="submit", class_="main"),
        tag("button", "Export as a report", type="submit", formaction="/export"),
        class_="line",
    )
    if not shown:
        return joined((tag("p", tag("strong", count)), empty("No Run is like that.")))
    table = tag(
        "div",
        tag(
            "table",
            tag("caption", "Runs", class_="spoken"),
            tag("thead", tag("tr", *_header(asked, shown))),
            tag("tbody", *(_row(asked.columns, row) for row in shown)),
            class_="numbers runs",
        ),
        class_="scrolls",
        tabindex="0",
        role="region",
        aria_label="Runs",
    )
    form = tag("form", bar, table, method="get", action="/compare", id="selection")
    return joined((form, _paging(asked, at, pages)))


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _header(asked: Asked, shown: Sequence[Row]) -> Iterator[Markup]:
    label = "Select all that are shown"
    every = tag("input", type="checkbox", id="all", aria_label=label, title=label, hidden=True)
    yield tag("th", every, tag("span", "Selected", class_="spoken"), scope="col", class_="pick")
    for name in ("run", *asked.columns):
        mine = name == asked.sort
        # Of numbers the large ones, and of dates the late ones, come first at the first click.
        first = name if name in ("run", *USUAL[:5]) else f"-{name}"
        other = name if asked.down else f"-{name}"
        link = tag(
            "a",
            _TITLES.get(name, name),
            tag("span", " \N{DOWNWARDS ARROW}" if asked.down else " \N{UPWARDS ARROW}", aria_hidden="true")
            if mine
            else "",
            href=asked.with_(sort=other if mine else first),
            title=f"Sort by {name}",
        )
        order = ("descending" if asked.down else "ascending") if mine else None
        numeric = "n" if any(_is_number(row.facts.get(name)) for row in shown) else None
        yield tag("th", link, scope="col", aria_sort=order, class_=numeric)


def _row(columns: Sequence[str], row: Row) -> Markup:
    key = row.key
    pick = tag("input", type="checkbox", name="run", value=key, aria_label=f"Select {key}")
    link = tag("a", key, href=address("/compare", {"run": key}))
    if row.damage is not None:
        badge = tag("span", "damaged", class_="badge partial")
        name = tag("th", tag("div", tag("span", key), badge, class_="name"), scope="row")
        return tag(
            "tr", tag("td", class_="pick"), name, tag("td", row.damage, colspan=len(columns), class_="why")
        )
    measured = row.facts["numbers"]
    badges = [tag("span", measured, class_=f"badge {measured}")]
    if "partial.why" in row.facts:
        badges.append(tag("span", "partial", class_="badge partial", title=row.facts["partial.why"]))
    cells = (_cell(name, row) for name in columns)
    name = tag("th", tag("div", link, *badges, class_="name"), scope="row")
    return tag("tr", tag("td", pick, class_="pick"), name, *cells, data_key=key)


def _cell(name: str, row: Row) -> Markup:
    value = row.facts.get(name)
    if value is None:
        return tag("td", "-", class_="n quiet")
    if isinstance(value, str | bool):
        return tag("td", said(value))
    return tag("td", exactly(value, share(value) if name in _SHARES else number4(value)), class_="n")


def _paging(asked: Asked, at: int, pages: int) -> Markup:
    if pages == 1:
        return joined(())
    near = sorted({1, pages, *range(max(1, at - 2), min(pages, at + 2) + 1)})
    links: list[object] = []
    for before, number in zip([0, *near], near, strict=False):
        if number > before + 1:
            links.append(tag("span", "\N{HORIZONTAL ELLIPSIS}"))
        here = "page" if number == at else None
        where = asked.with_(page=number)
        links.append(tag("a", f"{number:,}", href=where, aria_current=here, aria_label=f"Page {number:,}"))
    return tag("nav", *links, class_="paging", aria_label="Pages of the table")
