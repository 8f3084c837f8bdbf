"""The table of all Runs: search, conditions, chosen columns, sorting and paging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.datastructures import QueryParams

from laminabench.analysis.metrics_table import METRICS
from laminabench.render.format import number4, share, short
from laminabench.render.forms import badge, check, form, hidden, line, submit
from laminabench.render.html import Markup, exactly, joined, scrolling, tag
from laminabench.render.view.facts import BRIEFLY
from laminabench.render.view.folder import MOST_FOLDERS
from laminabench.render.view.index import Index, Row
from laminabench.render.view.page import Page, address, empty, several
from laminabench.render.view.query import field_of, in_order, parsed
from laminabench.util.errors import UserError

USUAL = (
    *("system", "deployment.name", "model.name", "trace.name", "workload.mode"),
    *("throughput_tokens_per_s", "tbt_ms.p50", "tbt_ms.p99", "slo.token_attainment"),
    *("cost.usd_per_million_tokens", "date"),
)
MOST_COLUMNS = 60
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


class Address:
    """The choices of the table's address; `with_` changes some of them."""

    def __init__(self, query: QueryParams, index: Index) -> None:
        self.text = query.get("q", "")
        named = [name for name in query.getlist("col") if name][:MOST_COLUMNS]
        chosen = dict.fromkeys(field_of(name, index) for name in named or USUAL)
        # Usual columns in their order, then others as given.
        self.columns = [
            *(name for name in USUAL if name in chosen),
            *(name for name in chosen if name not in USUAL),
        ]
        self.usual = not named
        sort = query.get("sort") or "-date"
        self.down, self.sort = sort.startswith("-"), field_of(sort.removeprefix("-"), index)
        page = query.get("page", "1")
        self.page = int(page) if page.isdecimal() and len(page) < 9 else 1

    def items(self) -> dict[str, object]:
        """Return the parameters of an address with these choices."""
        sort = f"-{self.sort}" if self.down else self.sort
        return {
            **({"q": self.text} if self.text else {}),
            **({} if self.usual else {"col": self.columns}),
            **({"sort": sort} if sort != "-date" else {}),
        }

    def with_(self, **changed: object) -> str:
        return address("/", {**self.items(), **changed})


def table_page(index: Index, query: QueryParams) -> Page:
    """Return the page; with `part=rows` only the rows, to update them."""
    wrong = ""
    try:
        view = Address(query, index)
        conditions = parsed(view.text, index)
    except UserError as error:
        wrong, text = str(error), query.get("q", "")
        view = Address(QueryParams(), index)
        view.text, conditions = text, parsed("", index)
    complete = conditions.needs_all or not BRIEFLY.issuperset([*view.columns, view.sort])
    every = index.rows(complete=complete)
    rows = [] if wrong else in_order(conditions.matching(every), view.sort, down=view.down)
    if "part" in query:
        return Page("Runs", _results(view, rows, len(every)))
    if not every:
        why = "There are no Runs in this folder yet: they appear here as soon as there are."
        made = tag("code", "laminabench replay --trace azure-conv --system lamina")
        how = tag("p", "One is made by ", made)
        return Page("Runs", tag("div", empty(why, how), id="rows", data_live="/?part=rows"))
    cut = f"There are more than {MOST_FOLDERS:,} folders here: not all were looked into."
    live = view.with_(part="rows", page=view.page)
    parts = (
        _search(view, wrong),
        tag("p", cut, class_="wrong") if index.refreshed().cut else "",
        tag("div", _results(view, rows, len(every)), id="rows", data_live=live),
        tag("p", id="news", role="status", class_="spoken"),
    )
    return Page("Runs", joined(parts))


def columns_page(index: Index, query: QueryParams) -> Page:
    """Return the choice of columns: every field, by the parts of a manifest."""
    view = Address(query, index)
    groups: dict[str, list[str]] = {}
    for name in sorted(index.columns()):
        first, dot, _ = name.partition(".")
        groups.setdefault(first if dot else "", []).append(name)
    parts = [
        tag(
            "fieldset",
            tag("legend", group or "by itself"),
            *(check("col", each, each, checked=each in view.columns) for each in names if each != "run"),
        )
        for group, names in groups.items()
    ]
    fields = {name: value for name, value in view.items().items() if name != "col"}
    usual = tag("a", "The usual ones", href=address("/", fields), class_="button")
    buttons = line(submit("Show these columns", main=True), usual)
    choice = form("/", hidden(fields), buttons, tag("div", *parts, class_="fields"))
    return Page("Columns", joined((tag("p", "These are the fields that the Runs here have."), choice)))


def _search(view: Address, wrong: str) -> Markup:
    fields = view.items()
    fields.pop("q", None)
    box = tag(
        "input",
        type="search",
        name="q",
        id="q",
        value=view.text,
        placeholder="tbt_ms.p99<80 system=lamina azure",
        autocomplete="off",
        spellcheck="false",
        aria_describedby="q-help q-wrong",
        aria_invalid="true" if wrong else None,
    )
    examples = ("tbt_ms.p99<80", "system=lamina,vllm", "trace=azure*", "request.batches!=1")
    hints = [part for each in examples for part in (tag("code", each), ", ")]
    help_ = ("Words are looked for in every field; conditions are like ", *hints[:-1], ".")
    label = tag("label", "Search", for_="q", class_="spoken")
    choose = tag("a", "Columns", href=address("/columns", view.items()), class_="button")
    return form(
        "/",
        line(label, box, submit("Search", main=True), choose),
        tag("p", *help_, id="q-help", class_="kinds"),
        tag("p", wrong, class_="wrong", id="q-wrong", role="alert") if wrong else "",
        hidden(fields),
        role="search",
    )


def _results(view: Address, rows: Sequence[Row], of: int) -> Markup:
    pages = max(1, -(-len(rows) // ROWS))
    at = min(max(view.page, 1), pages)
    shown = rows[(at - 1) * ROWS : at * ROWS]
    count = several(of, "Run") if len(rows) == of else f"{len(rows):,} of {several(of, 'Run')}"
    if pages > 1:
        count += f", {(at - 1) * ROWS + 1:,} to {(at - 1) * ROWS + len(shown):,}"
    if not shown:
        return joined((tag("p", tag("strong", count)), empty("No Run is like that.")))
    selected = tag("span", class_="selected", data_selected=True)
    exported = submit("Export as a report", action="/export")
    bar = line(tag("strong", count), selected, submit("Compare", main=True), exported)
    element = tag(
        "table",
        tag("caption", "Runs", class_="spoken"),
        tag("thead", tag("tr", *_header(view, shown))),
        tag("tbody", *(_row(view.columns, row) for row in shown)),
        class_="numbers runs",
    )
    chosen = form("/compare", bar, scrolling(element, "Runs"), id="selection")
    return joined((chosen, _paging(view, at, pages)))


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _header(view: Address, shown: Sequence[Row]) -> Iterator[Markup]:
    label = "Select all that are shown"
    every = tag("input", type="checkbox", id="all", aria_label=label, title=label, hidden=True)
    yield tag("th", every, tag("span", "Selected", class_="spoken"), scope="col", class_="pick")
    for name in ("run", *view.columns):
        sorts = name == view.sort
        # The first click sorts large numbers and late dates first.
        first = name if name in ("run", *USUAL[:5]) else f"-{name}"
        other = name if view.down else f"-{name}"
        arrow = "\N{DOWNWARDS ARROW}" if view.down else "\N{UPWARDS ARROW}"
        sign = tag("span", f" {arrow}", aria_hidden="true") if sorts else ""
        href = view.with_(sort=other if sorts else first)
        link = tag("a", _TITLES.get(name, name), sign, href=href, title=f"Sort by {name}")
        order = ("descending" if view.down else "ascending") if sorts else None
        numeric = "n" if any(_is_number(row.facts.get(name)) for row in shown) else None
        yield tag("th", link, scope="col", aria_sort=order, class_=numeric)


def _row(columns: Sequence[str], row: Row) -> Markup:
    key = row.key
    if row.damage is not None:
        name = tag("div", tag("span", key), badge("damaged", "partial"), class_="name")
        why = tag("td", row.damage, colspan=len(columns), class_="why")
        return tag("tr", tag("td", class_="pick"), tag("th", name, scope="row"), why)
    pick = tag("input", type="checkbox", name="run", value=key, aria_label=f"Select {key}")
    badges = [badge(str(row.facts["numbers"]))]
    if "partial.why" in row.facts:
        badges.append(tag("span", "partial", class_="badge partial", title=row.facts["partial.why"]))
    link = tag("a", key, href=address("/compare", {"run": key}))
    name = tag("th", tag("div", link, *badges, class_="name"), scope="row")
    return tag(
        "tr", tag("td", pick, class_="pick"), name, *(_cell(each, row) for each in columns), data_key=key
    )


def _cell(name: str, row: Row) -> Markup:
    value = row.facts.get(name)
    if value is None:
        return tag("td", "-", class_="n quiet")
    if isinstance(value, str | bool):
        return tag("td", short(value))
    return tag("td", exactly(value, share(value) if name in _SHARES else number4(value)), class_="n")


def _paging(view: Address, at: int, pages: int) -> Markup:
    if pages == 1:
        return joined(())
    near = sorted({1, pages, *range(max(1, at - 2), min(pages, at + 2) + 1)})
    links: list[object] = []
    for before, number in zip([0, *near], near, strict=False):
        if number > before + 1:
            links.append(tag("span", "\N{HORIZONTAL ELLIPSIS}"))
        here = "page" if number == at else None
        where = view.with_(page=number)
        links.append(tag("a", f"{number:,}", href=where, aria_current=here, aria_label=f"Page {number:,}"))
    return tag("nav", *links, class_="paging", aria_label="Pages of the table")
