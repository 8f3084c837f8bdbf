"""Bands from one cost set to the other, which is how figures show what is modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def ends(values: pd.Series[float]) -> tuple[float, float]:
    """From the lowest to the highest, for a claim."""
    return float(values.min()), float(values.max())


def band(axes: Axes, frame: pd.DataFrame, x: str, y: str, **options: Any) -> None:
    """Lines over `x`: the cost sets' mean, and a band from the lower to the higher."""
    import seaborn as sns

    # Seaborn's marks have a white rim, which would stay white in the dark.
    sns.lineplot(frame, x=x, y=y, markeredgewidth=0, errorbar=ends, ax=axes, **options)
