"""HTML representations for notebooks: escaped, in the notebook's own colours, light or dark."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

from laminabench.render.forms import tiles
from laminabench.render.html import Markup, cell, document, joined, sentences, tag
from laminabench.render.model import Sheet


def block(title: object, *inside: object, badges: Iterable[str]) -> str:
    """Return an HTML block of a title and its parts, with its style inline: a notebook has no other place."""
    style = (resources.files("laminabench.api") / "answer.css").read_text(encoding="utf-8")
    marks = joined(tag("span", badge, class_=f"badge {badge}") for badge in badges)
    head = tag("p", title, " ", marks, class_="of")
    return tag("div", tag("style", Markup(style)), head, *inside, class_="laminabench")


def cards(facts: Iterable[tuple[str, str]]) -> Markup:
    """Numbers in large, each over its unit."""
    return tiles((unit, number) for number, unit in facts)


def lines(rows: Iterable[tuple[str, str]]) -> Markup:
    """Return a table of labels and lines."""
    return tag("table", *(tag("tr", tag("th", label, scope="row"), tag("td", line)) for label, line in rows))


def sheet(data: Sheet, *, most: int | None = None) -> Markup:
    """Return a table with its notes; of a long one the first rows, and how many more there are."""
    right = ["right" if title.startswith(">") else None for title in data.columns]
    titles = zip(data.columns, right, strict=True)
    head = tag("tr", *(tag("th", each.removeprefix(">"), scope="col", class_=to) for each, to in titles))
    rows = data.rows[:most]
    body = (
        tag("tr", *(tag("td", cell(each), class_=to) for each, to in zip(row, right, strict=True)))
        for row in rows
    )
    caption = tag("caption", data.title) if data.title else ""
    more = f"and {len(data.rows) - len(rows):,} more rows" if len(rows) < len(data.rows) else ""
    table = tag("table", caption, tag("thead", head), tag("tbody", *body), class_="sheet")
    notes = [*([more] if more else []), *data.notes]
    return joined((tag("div", table, class_="scrolls"), sentences(notes)))


def page(title: str, *inside: str) -> str:
    """Return the block as a complete page."""
    return document(title, *map(Markup, inside))
