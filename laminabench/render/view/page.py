"""The explorer's pages: their parts, and the HTML around them.

A view is a function `page(entry: Entry, query: QueryParams) -> Page` (of `laminabench.render.view.folder` and
starlette). It reads the folder `entry.path` and takes everything else from the query, so that a link has all
choices; forms are plain `<form method="get">` with a hidden `at`, the entry's key. It raises UserError
if the query or the folder is wrong: the sentence becomes the page. A kind of result is an entry of
`folder.MARKS`, by the file that marks its folder, and a row of `app.LISTED`.

If a form or a link has `data-part="ID"`, the script fetches its address with `part=ID` added and puts the
answer into the element of that id; the rest of the page stays. A view answers `query.get("part") == "ID"`
with a Page of what belongs inside that element, its charts included. Without the script the whole page is
loaded, which must show the same. `<div id="ID" data-lazy="ADDRESS">` is filled so at once.

Scripts are files of this package that are named in `Page.scripts` and run when the page has been parsed. None
may be in the page itself. Data for them is `markup.script_data("ID", DATA)` in the body. With `plotly=True`
they have `Plotly`, and `laminabench.draw([{id, data, layout}, ...])` draws in the colours of the page.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from urllib.parse import urlencode

from laminabench.render import html
from laminabench.render.charts.chart import Chart
from laminabench.render.html import Markup, script_data, tag
from laminabench.render.report import plotly_script

TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
_REPORTS = ("report.css", "report.js")


def static(name: str) -> str:
    """Return the address of a static file, which browsers may cache for ever."""
    content = packaged(name)
    assert content is not None, name
    return f"/static/{_digest(content)}/{name}"


@functools.cache
def packaged(name: str) -> bytes | None:
    """Return a static file by its name; None if there is none."""
    if name == "plotly.js":
        return plotly_script().encode()
    if name not in _names():
        return None
    package = "laminabench.render" if name in _REPORTS else "laminabench.render.view"
    return (resources.files(package) / name).read_bytes()


@functools.cache
def _names() -> frozenset[str]:
    ours = (file.name for file in resources.files("laminabench.render.view").iterdir())
    return frozenset((*_REPORTS, *(name for name in ours if name.endswith(tuple(TYPES)))))


@functools.cache
def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Page:
    """One view; its charts are drawn where their `html()` stands in the body."""

    title: str
    body: Markup
    charts: Sequence[Chart] = ()
    scripts: Sequence[str] = ()
    plotly: bool = False  # for charts of the script's own, or lazy ones
    evaluates: bool = False  # for WebGL charts of plotly, which create functions from text
    keys: Markup | None = None  # buttons that show or hide Runs in all charts


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of the navigation bar."""

    title: str
    address: str
    count: int | None = None
    here: bool = False


def document(page: Page, folder: str, places: Sequence[Place]) -> str:
    """Return the complete HTML."""
    names = [
        *(["plotly.js"] if page.plotly or page.charts else []),
        "report.js",
        *page.scripts,
    ]
    sheets = ("report.css", "view.css", "things.css")
    head = (
        *(tag("link", rel="stylesheet", href=static(name)) for name in sheets),
        tag("link", rel="icon", href="data:,"),
        # First, since it sets the chosen colours.
        tag("script", src=static("view.js")),
    )
    return html.document(
        f"{page.title} \N{EN DASH} laminabench",
        tag("a", "Skip to the content", class_="skip", href="#main"),
        _bar(folder, places),
        tag("main", tag("h1", page.title), page.keys or "", page.body, id="main", tabindex="-1"),
        _footer(),
        script_data("figures", [chart.figure() for chart in page.charts]),
        *(tag("script", src=static(name)) for name in names),
        head=head,
        class_="explorer",
    )


def part(page: Page) -> dict[str, object]:
    """Return the JSON for a script that requested a part."""
    return {"html": page.body, "figures": [chart.figure() for chart in page.charts]}


def _bar(folder: str, places: Sequence[Place]) -> Markup:
    links = (
        tag(
            "a",
            each.title,
            tag("span", f"{each.count:,}", class_="count") if each.count is not None else "",
            href=each.address,
            aria_current="page" if each.here else None,
        )
        for each in places
    )
    return tag(
        "header",
        tag("div", tag("a", "laminabench", href="/", class_="brand"), tag("span", folder, class_="folder")),
        tag("nav", *links, class_="places", aria_label="In this folder"),
        tag("button", "Dark", type="button", id="theme", hidden=True),
        class_="bar",
    )


_KEYS = (
    ("/", "search"),
    ("j k", "next, previous row"),
    ("x", "select the row"),
    ("o", "open it"),
    ("c", "compare what is selected"),
    ("t", "light or dark"),
    ("g r, g l", "Runs, replays under way"),
    ("?", "these keys"),
)


def _footer() -> Markup:
    keys = (tag("div", tag("dt", tag("kbd", key)), tag("dd", does)) for key, does in _KEYS)
    return tag(
        "footer",
        tag("details", tag("summary", "Keys"), tag("dl", *keys), id="shortcuts"),
        tag("p", "This page is served by this machine to this browser alone; nothing leaves it."),
    )


def several(count: int, name: str) -> str:
    """Count in words: 1 Run, 2 Runs."""
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"


def empty(*words: object) -> Markup:
    """Return a notice in place of content: why there is none, and what to do."""
    return tag("div", *(tag("p", each) for each in words), class_="empty")


def address(path: str, items: Mapping[str, object]) -> str:
    """Return an address with a query, without the parameters that are None."""
    written = urlencode({name: value for name, value in items.items() if value is not None}, doseq=True)
    return f"{path}?{written}" if written else path
