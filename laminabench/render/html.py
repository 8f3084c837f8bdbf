"""HTML elements whose contents are escaped unless they are Markup."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from laminabench.render.model import Cell, Sheet
from laminabench.traces.formats.wording import printable
from laminabench.util.json import json_safe

_EMPTY = {"meta", "br", "input", "link"}
_CLASSES = {"good": "ratio better", "bad": "ratio worse", "quiet": "quiet", "strong": "strong"}


class Markup(str):
    """Text that is HTML already; all other text is escaped."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Escape any value."""
    if isinstance(value, Markup):
        return value
    return Markup("\n".join(html.escape(printable(line)) for line in str(value).split("\n")))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element; `class_` sets class, `data_run` data-run, and True or False a boolean attribute."""
    written = "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _EMPTY:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(children)}</{name}>")


def document(title: str, *body: object, head: Iterable[object] = (), **attributes: object) -> str:
    """Return a complete page."""
    about = (
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        *head,
        tag("title", title),
    )
    page = tag("html", tag("head", *about), tag("body", *body, **attributes), lang="en")
    return f"<!doctype html>\n{page}\n"


def joined(parts: Iterable[object]) -> Markup:
    return Markup("".join(map(text, parts)))


def table(
    caption: str, header: Sequence[object], rows: Iterable[Sequence[object]], class_: str = ""
) -> Markup:
    """Return a table in a box that scrolls on narrow pages; first cells are row headers."""
    head = tag("thead", tag("tr", *(tag("th", each, scope="col") for each in header)))
    lines = (
        tag("tr", tag("th", first, scope="row"), *(tag("td", each) for each in rest)) for first, *rest in rows
    )
    element = tag("table", tag("caption", caption), head, tag("tbody", *lines), class_=class_ or None)
    return scrolling(element, caption)


def scrolling(content: Markup, name: str) -> Markup:
    """Return a box that scrolls; its name makes it reachable by keyboard."""
    return tag("div", content, class_="scrolls", tabindex="0", role="region", aria_label=name)


def sheet_table(sheet: Sheet, class_: str = "numbers", head: Sequence[object] = ()) -> Markup:
    """Return a Sheet as a table with its notes; `head` replaces the titles of its columns."""
    titles = head or [title.removeprefix(">") for title in sheet.columns]
    rows = ([*map(cell, row)] for row in sheet.rows)
    return joined((table(sheet.title, titles, rows, class_), sentences(sheet.notes)))


def cell(value: object) -> Markup:
    """Return what is inside of a table's cell."""
    if not isinstance(value, Cell):
        return text(value)
    written = exactly(value.value, value.text)
    if value.tone in _CLASSES:
        written = tag("span", written, class_=_CLASSES[value.tone])
    return joined((written, tag("span", f" {value.more}", class_="interval"))) if value.more else written


def sentences(each_line: Sequence[str], class_: str = "notes") -> Markup:
    """Return sentences, one a line."""
    return tag("ul", *(tag("li", each) for each in each_line), class_=class_) if each_line else Markup("")


def exactly(value: float | None, written: str) -> Markup:
    """Return a formatted number that carries its exact value for programs."""
    return text(written) if value is None else tag("data", written, value=repr(value))


def script_data(key: str, data: Any) -> Markup:
    """Return data for the page's script; nothing in it can end its element."""
    written = json.dumps(json_safe(data), allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    return tag("script", Markup(written), type="application/json", id=key)


def _name(attribute: str) -> str:
    return attribute.rstrip("_").replace("_", "-")
