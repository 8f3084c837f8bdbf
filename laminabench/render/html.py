"""HTML of parts that are escaped unless they say that they are HTML themselves."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from laminabench.traces.formats.wording import printable
from laminabench.util.json import json_safe

_EMPTY = {"meta", "br", "input", "link"}


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


def joined(parts: Iterable[object]) -> Markup:
    return Markup("".join(map(text, parts)))


def table(
    caption: str, header: Sequence[object], rows: Iterable[Sequence[object]], class_: str = ""
) -> Markup:
    """A table in a box of its own that scrolls where the page is too narrow; first cells name their rows."""
    head = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in header)))
    lines = (
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest)) for first, *rest in rows
    )
    whole = tag("table", tag("caption", caption), head, tag("tbody", *lines), class_=class_ or None)
    # A box that scrolls has to be reachable by keyboard, and then to have a name.
    return tag("div", whole, class_="scrolls", tabindex="0", role="region", aria_label=caption)


def exactly(value: float | None, written: str) -> Markup:
    """A number as it is read, with what it is exactly for what reads the page by program."""
    return tag("span", written) if value is None else tag("data", written, value=repr(value))


def script_data(key: str, data: Any) -> Markup:
    """Data for the page's script. Nothing in it can end the element that it is in."""
    written = json.dumps(json_safe(data), allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    return tag("script", Markup(written), type="application/json", id=key)


def _name(attribute: str) -> str:
    return attribute.rstrip("_").replace("_", "-")
