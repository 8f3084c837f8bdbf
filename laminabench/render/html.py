"""HTML of parts that are escaped unless they say that they are HTML themselves."""

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
    """Text that is HTML. Whatever is not of this class gets escaped."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Anything as text that a browser shows and does not obey."""
    if isinstance(value, Markup):
        return value
    return Markup("\n".join(html.escape(printable(line)) for line in str(value).split("\n")))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; `class_` is for class, `data_run` for data-run, True and False for on and off."""
    said = "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _EMPTY:
        return Markup(f"<{name}{said}>")
    return Markup(f"<{name}{said}>{joined(children)}</{name}>")


def document(title: str, *body: object, head: Iterable[object] = (), **attributes: object) -> str:
    """Return a whole page."""
    about = (
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        *head,
        tag("title", title),
    )
    whole = tag("html", tag("head", *about), tag("body", *body, **attributes), lang="en")
    return f"<!doctype html>\n{whole}\n"


def joined(parts: Iterable[object]) -> Markup:
    return Markup("".join(map(text, parts)))


def table(
    caption: str, header: Sequence[object], rows: Iterable[Sequence[object]], class_: str = ""
) -> Markup:
    """A table in a box of its own that scrolls where the page is too narrow; first cells name their rows."""
    head = tag("thead", tag("tr", *(tag("th", each, scope="col") for each in header)))
    lines = (
        tag("tr", tag("th", first, scope="row"), *(tag("td", each) for each in rest)) for first, *rest in rows
    )
    whole = tag("table", tag("caption", caption), head, tag("tbody", *lines), class_=class_ or None)
    return scrolling(whole, caption)


def scrolling(whole: Markup, name: str) -> Markup:
    """Return a box that scrolls: it has to be reachable by keyboard, and then to have a name."""
    return tag("div", whole, class_="scrolls", tabindex="0", role="region", aria_label=name)


def sheet_table(sheet: Sheet, class_: str = "numbers", head: Sequence[object] = ()) -> Markup:
    """Return a Sheet as a table with its notes; `head` replaces the titles of its columns."""
    titles = head or [title.removeprefix(">") for title in sheet.columns]
    rows = ([*map(cell, row)] for row in sheet.rows)
    return joined((table(sheet.title, titles, rows, class_), sentences(sheet.notes)))


def cell(found: object) -> Markup:
    """Return what is inside of a table's cell."""
    if not isinstance(found, Cell):
        return text(found)
    written = exactly(found.value, found.text)
    if found.tone in _CLASSES:
        written = tag("span", written, class_=_CLASSES[found.tone])
    return joined((written, tag("span", f" {found.more}", class_="interval"))) if found.more else written


def sentences(each_line: Sequence[str], class_: str = "notes") -> Markup:
    """Return sentences, one a line."""
    return tag("ul", *(tag("li", each) for each in each_line), class_=class_) if each_line else Markup("")


def exactly(value: float | None, written: str) -> Markup:
    """A number as it is read, with what it is exactly for what reads the page by program."""
    return text(written) if value is None else tag("data", written, value=repr(value))


def script_data(key: str, data: Any) -> Markup:
    """Data for the page's script. Nothing in it can end the element that it is in."""
    written = json.dumps(json_safe(data), allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    return tag("script", Markup(written), type="application/json", id=key)


def _name(attribute: str) -> str:
    return attribute.rstrip("_").replace("_", "-")
