"""Form fields, buttons and number tiles of pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from laminabench.render.html import Markup, joined, tag


def form(action: str, *inside: object, **attributes: Any) -> Markup:
    """Return a form whose choices become the address."""
    return tag("form", *inside, method="get", action=action, **attributes)


def hidden(items: Mapping[str, object]) -> Markup:
    """Return fields that preserve the address's other parameters, one per value of a list."""
    return joined(
        tag("input", type="hidden", name=name, value=value)
        for name, values in items.items()
        for value in (values if isinstance(values, list) else [values])
    )


def select(name: str, title: str, values: Mapping[Any, str], chosen: object) -> Markup:
    """Return a drop-down list."""
    options = (tag("option", words, value=value, selected=value == chosen) for value, words in values.items())
    return tag("label", f"{title} ", tag("select", *options, name=name, id=name))


def check(name: str, value: str, title: str, *, checked: bool) -> Markup:
    """Return a checkbox."""
    box = tag("input", type="checkbox", name=name, value=value, checked=checked)
    return tag("label", box, f" {title}")


def submit(words: str, *, main: bool = False, action: str | None = None) -> Markup:
    """Return a button that sends its form, perhaps elsewhere."""
    return tag("button", words, type="submit", formaction=action, class_="main" if main else None)


def copies(words: str, what: str) -> Markup:
    """Return a button that copies the page's link, or the text of an element, once the script is there."""
    return tag("button", words, type="button", data_copy=what, hidden=True)


def line(*inside: object) -> Markup:
    """Return fields and buttons in one line."""
    return tag("div", *inside, class_="line")


def command(text: str, **attributes: Any) -> Markup:
    """Return a command for the reader to repeat."""
    return tag("pre", text, **attributes, tabindex="0")


def badge(words: str, class_: str = "") -> Markup:
    """Return whether numbers are modelled, measured or emulated."""
    return tag("span", words, class_=f"badge {class_ or words}")


def tiles(facts: Iterable[tuple[object, object]], **attributes: Any) -> Markup:
    """Return tiles of large numbers over their units."""
    return tag("dl", *(tag("div", tag("dt", unit), tag("dd", fact)) for unit, fact in facts), **attributes)
