"""The choice of the table's columns, of all fields that the Runs have."""

from __future__ import annotations

from starlette.datastructures import QueryParams

from laminabench.render.html import joined, tag
from laminabench.render.view.asked import Asked, address
from laminabench.render.view.index import Index
from laminabench.render.view.page import Page


def columns_page(index: Index, query: QueryParams) -> Page:
    """Every field as a checkbox, by the parts of a manifest."""
    asked = Asked(query, index)
    groups: dict[str, list[str]] = {}
    for name in sorted(index.columns()):
        first, dot, _ = name.partition(".")
        groups.setdefault(first if dot else "", []).append(name)
    chosen = set(asked.columns)
    parts = [
        tag(
            "fieldset",
            tag("legend", group or "by itself"),
            *(
                tag(
                    "label",
                    tag("input", type="checkbox", name="col", value=name, checked=name in chosen),
                    " ",
                    name,
                )
                for name in names
                if name != "run"
            ),
        )
        for group, names in groups.items()
    ]
    kept = {name: value for name, value in asked.items().items() if name != "col"}
    hidden = (tag("input", type="hidden", name=name, value=value) for name, value in kept.items())
    line = tag(
        "div",
        tag("button", "Show these columns", type="submit", class_="main"),
        tag("a", "The usual ones", href=address("/", kept), class_="button"),
        class_="line",
    )
    form = tag("form", *hidden, line, tag("div", *parts, class_="fields"), method="get", action="/")
    return Page("Columns", joined((tag("p", "These are the fields that the Runs here have."), form)))
