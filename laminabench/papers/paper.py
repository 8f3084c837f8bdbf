"""The papers' figures and tables by name, and how each becomes files.

Each is a part of its paper's TOML file (title, texts, claims, plot) and a function that computes its frame
and the values in its claims.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laminabench.papers.claims import Claim, Statement, compare, fill, sentence
from laminabench.papers.context import Context
from laminabench.papers.draw import Table
from laminabench.papers.entries import PAPERS, TITLES, Entry
from laminabench.render import style
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SUFFIXES = (".csv", ".svg", ".png")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a figure's function."""

    frame: pd.DataFrame | None  # None: a row for each claim
    values: Mapping[str, Any] = field(default_factory=dict)  # of claims and texts, by name
    frames: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # others that the plot shows


@dataclass(frozen=True, slots=True)
class Made:
    """A computed figure, before it is drawn."""

    result: Result
    entry: Entry
    frame: pd.DataFrame
    claims: Sequence[Claim]
    how: str

    def picture(self) -> Figure:
        """Return the picture with the line under it; called inside `style.look`."""
        drawn = self.entry.plot or self.entry.table or Table()
        values = {**self.result.values, "stated": self.entry.published}
        figure: Figure = drawn.picture({"": self.frame, **self.result.frames}, values)
        style.foot(figure, self.how)
        return figure


@dataclass(frozen=True, slots=True)
class Written:
    """One figure in the output folder."""

    name: str
    how: str
    claims: Sequence[Claim]
    rows: int

    @property
    def title(self) -> str:
        return TITLES[self.name]


def find(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the chosen names in the papers' order; all, for `all` or nothing."""
    from laminabench.util.suggest import nearest

    if not names or "all" in names:
        return tuple(TITLES)
    for name in names:
        if name not in TITLES:
            raise UserError("figure-unknown", f"no figure is called {name!r}; {nearest(name, TITLES)}")
    return tuple(name for name in TITLES if name in names)


def make(name: str, context: Context) -> Made:
    """Compute a figure: `fig12` of its paper's module makes h2m2-fig12."""
    paper = next(each for each in PAPERS if name in each.figures)
    entry = paper.figures[name]
    module = importlib.import_module(f"laminabench.papers.{paper.name.lower()}.{entry.module}")
    result: Result = getattr(module, name.rpartition("-")[2])(context)
    values = {"sets": context.sets, **result.values}
    values["how"] = fill(entry.how, values)
    values["How"] = sentence(values["how"])
    defaults = Statement("", where=entry.where, how=entry.how, about=entry.about, rests_on=entry.rests_on)
    claims = [claim for statement in entry.claims for claim in compare(statement, values, defaults)]
    frame = _listed(claims) if result.frame is None else result.frame
    return Made(result, entry, frame, claims, fill(entry.caption, values))


def _listed(claims: Sequence[Claim]) -> pd.DataFrame:
    import pandas as pd

    rows = [(each.what, each.where, *each.row()[2:4]) for each in claims]
    return pd.DataFrame(rows, columns=["what", "where", "published", "ours"])


def write(context: Context, request: tuple[str, Path]) -> Written:
    """Make and draw one figure, and write its three files into a folder, each completely or not at all."""
    name, folder = request
    made = make(name, context)
    with style.look():
        picture = made.picture()
        for suffix in SUFFIXES:
            with replacing(folder / f"{name}{suffix}") as temporary:
                if suffix == ".csv":
                    made.frame.to_csv(temporary, index=False, lineterminator="\n", float_format="%.6g")
                else:
                    style.save(picture, temporary)
    return Written(name, made.how, made.claims, len(made.frame))
