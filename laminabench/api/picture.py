"""A picture that shows itself in a notebook and can be written into a file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from laminabench.render.static.drawn import drawn, png_of

if TYPE_CHECKING:
    import os

    from matplotlib.figure import Figure


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
