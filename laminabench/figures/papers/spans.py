"""What figures of several papers are made of: panels, and bands or bars from one cost set to the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from laminabench.render.style import INK, Looks, no_legend


def ends(values: pd.Series[float]) -> tuple[float, float]:
    """From the lowest to the highest."""
    return float(values.min()), float(values.max())


def span(values: Iterable[float], form: str = ".2f") -> str:
    """From the lowest to the highest, in words."""
    found = list(values)
    low, high = format(min(found), form), format(max(found), form)
    return low if low == high else f"{low} to {high}"


def stacked(parts: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of each part, whose columns are arrays, or one value for all of its rows."""
    return pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)


def panels(
    axes: Any, frame: pd.DataFrame, **by: Iterable[Any]
) -> Iterator[tuple[Axes, tuple[Any, ...], pd.DataFrame]]:
    """Each of the axes, row by row, with its values of these columns and the rows that have them."""
    for each, values in zip(np.ravel(axes), itertools.product(*by.values()), strict=True):
        yield each, values, frame[(frame[list(by)] == list(values)).all(axis=1)]


def band(axes: Axes, frame: pd.DataFrame, x: str, y: str, **options: Any) -> None:
    """Lines over `x`: the cost sets' mean, and a band from the lower to the higher. Without a legend."""
    import seaborn as sns

    # Seaborn's marks have a white rim, which would stay white in the dark.
    sns.lineplot(frame, x=x, y=y, markeredgewidth=0, errorbar=ends, ax=axes, **options)
    no_legend(axes)


def set_bars(axes: Axes, frame: pd.DataFrame, x: str, y: str, **options: Any) -> None:
    """Bars to the cost sets' mean, and lines from the lower to the higher. Without a legend."""
    import seaborn as sns

    spans: Looks = {"errorbar": ends, "err_kws": {"linewidth": 1, "color": INK}}
    sns.barplot(frame, x=x, y=y, saturation=1, ax=axes, **spans, **options)
    no_legend(axes)
    axes.grid(visible=False, axis="x")
