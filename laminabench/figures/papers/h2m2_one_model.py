"""Figures 12, 13 and 15 are one figure of three models: H2M2, Hierarchical and Oracle over LPDDR alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from laminabench.catalog.boards import Board
from laminabench.figures.claims import Claim
from laminabench.figures.papers.h2m2_bars import bars, legend_entries, point_names
from laminabench.figures.papers.h2m2_ground import (
    CHINCHILLA,
    COLOURS,
    GPT3,
    H2M2,
    HIERARCHICAL,
    LLAMA,
    OF_HIERARCHICAL,
    OF_TRANSLATION,
    ORACLE,
    Case,
    means,
    original,
    points_of,
    speed_up,
    speed_ups,
)
from laminabench.figures.style import PAGE, PUBLISHED, foot, sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WAYS = (HIERARCHICAL, H2M2, ORACLE)
# Of migration and computing: nothing at once, or all that can be.
OVERLAPS = {"lowest": 0.0, "highest": 1.0}
ALSO = (OF_TRANSLATION, OF_HIERARCHICAL)
_FITTED = "; one overlap for all three models, fitted to their three averages"
STEP = 32  # tokens from length to length: the rows of an MV unit
SPAN = "Lines through bars span Hierarchical's overlaps from 0 to 1."


@dataclass(frozen=True, slots=True)
class Published:
    """What section 5.2 states of a model: averages over LPDDR alone, and H2M2's over Oracle's."""

    where: str
    hierarchical: float
    h2m2: float
    of_oracle: float
    oracle: float | None = None


PUBLISHED_OF = {
    GPT3.model: Published("section 5.2.1", hierarchical=1.07, h2m2=1.46, of_oracle=0.97),
    CHINCHILLA.model: Published("section 5.2.1", hierarchical=1.33, h2m2=1.55, of_oracle=0.95),
    LLAMA.model: Published("section 5.2.3", hierarchical=2.75, h2m2=2.94, of_oracle=0.98, oracle=3.00),
}


@cache
def overlapping(overlap: float) -> Board:
    """The board with another share of Hierarchical's migration hidden."""
    return replace(original(), hierarchical_overlap=overlap)


def frame_of(case: Case) -> pd.DataFrame:
    """Every way at the lengths that averages are over, and at those between, which lines are drawn through.

    Of Hierarchical also without any overlap and with all there can be.
    """
    longest = max(case.lengths)
    points = [(case.batch, length) for length in range(STEP, longest + 1, STEP)]
    assert set(points_of(case)) <= set(points)
    frame = speed_ups(WAYS, case.model, points)
    frame["averaged"] = frame["length"].isin(case.lengths)
    hierarchical = frame["way"] == HIERARCHICAL.words
    for column, overlap in OVERLAPS.items():
        board = overlapping(overlap)
        frame.loc[hierarchical, column] = [
            speed_up(HIERARCHICAL, case.model, point, board) for point in points
        ]
    return frame


def averaged(frame: pd.DataFrame) -> pd.DataFrame:
    """Of the lengths that the averages are over."""
    return frame[frame["averaged"]]


def claims_of(case: Case, frame: pd.DataFrame, published: Published, how: str) -> tuple[Claim, ...]:
    """Averages of the speed-ups at each length, and what H2M2 comes to of the best mapping.

    The averages are what the board's open parameters were fitted to; what greed costs is not.
    """
    found = means(averaged(frame))
    low, high = averaged(frame)[list(OVERLAPS)].mean()
    of_hierarchical = f"Without overlap it is {low:.2f} times, with all that there can be {high:.2f}."
    claims = [
        _average(H2M2.words, case, published.where, published.h2m2, found, how),
        _average(HIERARCHICAL.words, case, published.where, published.hierarchical, found, how + _FITTED),
        Claim(
            f"H2M2's average over Oracle's, {case.words}",
            published.where,
            published.of_oracle,
            float(found[H2M2.words] / found[ORACLE.words]),
            how,
            "times",
        ),
    ]
    claims[1] = replace(claims[1], remark=of_hierarchical)
    if published.oracle is not None:
        claims.append(_average(ORACLE.words, case, published.where, published.oracle, found, how))
    return tuple(claims)


def _average(way: str, case: Case, where: str, published: float, found: pd.Series[float], how: str) -> Claim:
    what = f"{way} over LPDDR-only, {case.words}, average"
    return Claim(what, where, published, float(found[way]), how, "times", fitted=True)


def hierarchical_leads(frame: pd.DataFrame) -> pd.Series[float]:
    """By how many per cent Hierarchical is the faster, at the lengths where it is."""
    table = frame.pivot_table(index="length", columns="way", values="speed_up")
    more: pd.Series[float] = 100 * (table[HIERARCHICAL.words] / table[H2M2.words] - 1)
    return more[more > 0]


def draw_case(frame: pd.DataFrame, published: Published, how: str) -> Figure:
    """Bars for the lengths averaged over, and lines over all of them."""
    figure, (left, right) = sheet(1, 2, width=PAGE, height=2.9, width_ratios=(2.2, 1), sharey=True)
    _groups(left, averaged(frame), published)
    _lines(right, frame)
    figure.legend(*legend_entries(left), loc="outside upper left", ncols=5)
    foot(figure, how)
    return figure


def _groups(axes: Axes, frame: pd.DataFrame, published: Published) -> None:
    stated = {HIERARCHICAL.words: published.hierarchical, H2M2.words: published.h2m2}
    if published.oracle is not None:
        stated[ORACLE.words] = published.oracle
    bars(axes, frame, point_names(frame, batches=False), inches=0.65 * PAGE, published=stated)
    axes.set(xlabel="length of the requests, tokens", ylabel="speed-up over LPDDR-only")


def _lines(axes: Axes, frame: pd.DataFrame) -> None:
    for way in WAYS:
        mine = frame[frame["way"] == way.words]
        axes.plot(mine["length"], mine["speed_up"], color=COLOURS[way.words])
    axes.set(xlabel="length, tokens", xlim=(0, None))
    axes.axhline(1, color=PUBLISHED, lw=0.6)
