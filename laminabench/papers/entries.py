"""The papers' TOML files: of each figure the title, texts, claims and plot."""

from __future__ import annotations

import tomllib
from functools import cached_property
from importlib.resources import files
from typing import Any

import msgspec

from laminabench.papers.claims import About, Named, Statement
from laminabench.papers.draw import Plot, Table


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A figure or table of its paper's TOML file; texts are templates over the computed values."""

    title: str
    module: str  # of the paper's package; its function with the figure's name computes the figure
    caption: str  # one line under the picture: modelled with what, computed from what, measured where
    how: str = ""  # this field and the next three are defaults of its claims
    where: str = ""
    about: About | None = None
    rests_on: tuple[Named, ...] = ()
    claims: tuple[Statement, ...] = ()
    plot: Plot | None = None
    table: Table | None = None

    @cached_property
    def published(self) -> dict[str, Any]:
        """The published values of the claims that have an id."""
        single = (claim.replaced(row) for claim in self.claims for row in claim.each)
        return {each.id: each.published for each in single if each.id}


class Paper(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A paper's figures by name."""

    name: str
    title: str
    link: str
    figures: dict[str, Entry]


def _paper(name: str) -> Paper:
    text = (files("laminabench.papers") / name / "figures.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Paper)


V2, V1, H2M2, TODAY = PAPERS = tuple(map(_paper, ("v2", "v1", "h2m2", "today")))
TITLES = {name: entry.title for paper in PAPERS for name, entry in paper.figures.items()}


def entry_of(name: str) -> Entry:
    """Return the entry of a figure."""
    return next(paper.figures[name] for paper in PAPERS if name in paper.figures)
