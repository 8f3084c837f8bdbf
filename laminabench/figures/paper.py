"""The papers' figures and tables by name, and how each becomes files.

Each is one file of `laminabench.figures.papers`: first a data frame, then a picture of it, and the paper's
claims beside ours.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from laminabench.atomic import replacing
from laminabench.errors import UserError
from laminabench.figures import style
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

V2 = tuple(
    [f"table{number}" for number in (1, 2, 3, 4, 5)]
    + [f"fig{number}" for number in (2, 3, 4, 10, 11, 12, 13, 14)]
)
V1 = tuple(
    [f"v1-table{number}" for number in (1, 3, 4)]
    + [f"v1-fig{number}" for number in (1, 3, 4, 5, 6, 12, 13, 14, 15, 16, 17)]
)
H2M2 = tuple(
    [f"h2m2-fig{number}" for number in (6, 7, 8, 12, 13, 14, 15)]
    + ["h2m2-table3"]
    + [f"h2m2-fig{number}" for number in (16, 17, 18, 19)]
    + ["h2m2-sensitivity"]
)
# One figure of three models, in one file.
ONE_MODEL = ("h2m2-fig12", "h2m2-fig13", "h2m2-fig15")
NAMES = V2 + V1 + H2M2
SUFFIXES = (".csv", ".svg", ".png")


@dataclass(frozen=True, slots=True)
class Made:
    """What a figure shows, before it is drawn."""

    frame: pd.DataFrame
    claims: tuple[Claim, ...]
    how: str  # one line under the picture: modelled with what, computed from what, measured where


class PaperFigure(Protocol):
    """What a module of `papers` offers."""

    TITLE: str

    def make(self, ground: Ground) -> Made:
        """The data frame, and the paper's claims beside what came out."""

    def draw(self, made: Made) -> Figure:
        """The picture; called inside `style.look`."""


@dataclass(frozen=True, slots=True)
class Written:
    """One figure in the output folder."""

    name: str
    title: str
    how: str
    claims: tuple[Claim, ...]
    rows: int


def find(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names asked for, in the papers' order; all, for `all` or nothing."""
    from laminabench.nearest import nearest

    if not names or "all" in names:
        return NAMES
    for name in names:
        if name not in NAMES:
            raise UserError("figure-unknown", f"no figure is called {name!r}; {nearest(name, NAMES)}")
    return tuple(name for name in NAMES if name in names)


def figure(name: str) -> PaperFigure:
    """The module of that name."""
    paper, _, short = name.rpartition("-")
    module = "one_model" if name in ONE_MODEL else short
    found = importlib.import_module(f"laminabench.figures.papers.{paper or 'v2'}.{module}")
    return cast("PaperFigure", found.FIGURES[name] if name in ONE_MODEL else found)


def write(ground: Ground, asked: tuple[str, Path]) -> Written:
    """Make and draw one figure, and write its three files into a folder: each is whole or not there."""
    name, folder = asked
    module = figure(name)
    made = module.make(ground)
    with style.look():
        picture = module.draw(made)
        for suffix in SUFFIXES:
            with replacing(folder / f"{name}{suffix}") as temporary:
                if suffix == ".csv":
                    made.frame.to_csv(temporary, index=False, lineterminator="\n", float_format="%.6g")
                else:
                    style.save(picture, temporary)
    return Written(name, module.TITLE, made.how, made.claims, len(made.frame))
