"""HTML representations for notebooks: escaped, in the notebook's own colours, light or dark."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from laminabench.render.forms import tiles
from laminabench.render.html import Markup, cell, document, joined, sentences, tag
from laminabench.render.model import Sheet
from laminabench.render.static.drawn import drawn, png_of

if TYPE_CHECKING:
    import os

    from matplotlib.figure import Figure


def block(title: object, *inside: object, badges: Iterable[str]) -> str:
    """Return an HTML block of a title and its parts, with its style inline: a notebook has no other place."""
    style = (resources.files("laminabench.api") / "answer.css").read_text(encoding="utf-8")
    marks = joined(tag("span", badge, class_=f"badge {badge}") for badge in badges)
    head = tag("p", title, " ", marks, class_="of")
    return tag("div", tag("style", Markup(style)), head, *inside, class_="laminabench")


def cards(facts: Iterable[tuple[str, str]]) -> Markup:
    """Show numbers in large type, each over its unit."""
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


class Picture:
    """A figure of matplotlib's, in the suite's look.

    A PNG and no interactive chart: it is there in a notebook that is opened without a network, on GitHub and
    in print, and a notebook of ten stays small. `report` has charts to zoom into.
    """

    def __init__(self, make: Callable[[], Figure]) -> None:
        self._make = make

    @functools.cached_property
    def figure(self) -> Figure:
        """The matplotlib figure, to be changed further."""
        return self._make()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it: .png, .svg or .pdf."""
        target = Path(path)
        drawn(lambda: self.figure, target)
        return target

    def _repr_png_(self) -> bytes:
        return png_of(lambda: self.figure)

    def __repr__(self) -> str:
        return "<Picture: the last line of a notebook's cell shows it, .save('x.png') writes it>"
