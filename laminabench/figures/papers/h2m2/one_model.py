"""Figures 12, 13 and 15 are one figure of three models: H2M2, Hierarchical and Oracle over LPDDR alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from laminabench.catalog.boards import Board
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made, PaperFigure
from laminabench.figures.papers.h2m2.bars import bars, legend_entries, point_names
from laminabench.figures.papers.h2m2.ground import (
    CHINCHILLA,
    COLOURS,
    GPT3,
    H2M2,
    HIERARCHICAL,
    LLAMA,
    OF_GQA,
    OF_HIERARCHICAL,
    OF_TRANSLATION,
    ORACLE,
    Case,
    how,
    lengths_text,
    mean_speed_up_assuming,
    means,
    original,
    points_of,
    speed_up,
    speed_ups,
)
from laminabench.figures.style import PAGE, PUBLISHED, foot, sentence, sheet

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
LEADS = "lengths at which Hierarchical outperforms H2M2"
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


@dataclass(slots=True)
class OneModel:
    """Figure 12, 13 or 15: its case, and the claims that only its model's section makes."""

    case: Case
    TITLE: str
    own_claims: Callable[[pd.DataFrame, str], tuple[Claim, ...]]
    shares_kv: bool = False

    def make(self, ground: Ground) -> Made:  # noqa: ARG002 - the catalogue's board and model
        """The three systems at the assumed lengths, and at all between."""
        published = PUBLISHED_OF[self.case.model]
        also = (*ALSO, OF_GQA) if self.shares_kv else ALSO
        frame, obtained = frame_of(self.case), how(lengths_text(self.case), also=also)
        claims = claims_of(self.case, frame, published, obtained)
        if self.shares_kv:
            claims = (replace(claims[0], remark=_read_once()), *claims[1:])
        words = "Each query head reads its group's KV from memory. " if self.shares_kv else ""
        foot = f"{sentence(obtained)}. {words}{SPAN}"
        return Made(frame, (*claims, *self.own_claims(frame, obtained)), foot)

    def draw(self, made: Made) -> Figure:
        """Bars by length and the averages; lines over all lengths."""
        return draw_case(made.frame, PUBLISHED_OF[self.case.model], made.how)


def _over_hierarchical(frame: pd.DataFrame, obtained: str) -> tuple[Claim, ...]:
    found = means(averaged(frame))
    ratio = float(found[H2M2.words] / found[HIERARCHICAL.words])
    what = "H2M2's average over Hierarchical's"
    # Fitted as both averages are.
    return (Claim(what, "section 7", 1.36, ratio, obtained, "times", fitted=True),)


def _until(frame: pd.DataFrame, obtained: str) -> tuple[Claim, ...]:
    leads = hierarchical_leads(frame)
    return (
        Claim(
            LEADS,
            "section 5.2.1",
            512,
            float(leads.index.max()) if len(leads) else 0.0,
            f"{obtained}; looked for in steps of {STEP}",
            "tokens",
            "at most",
            "There the board's HBM holds everything; Hierarchical is the faster by at most "
            f"{leads.max():.1f} %.",
        ),
    )


def _short(frame: pd.DataFrame, obtained: str) -> tuple[Claim, ...]:
    leads = hierarchical_leads(frame)
    ours = "none"
    if len(leads):
        ours = f"at {leads.index.min()} to {leads.index.max()} tokens, by up to {leads.max():.1f} %"
    return (Claim(LEADS, "section 5.2.3", '"shorter sequence lengths"', ours, obtained),)


def _read_once() -> str:
    """Why KV is read again by each query head."""
    once = mean_speed_up_assuming(H2M2, LLAMA, replace(original(), reread_kv=False))
    return (
        "The paper says that a group shares its KV's storage, not how often that is read. Here every query "
        "head reads it, which is a switch fitted to this number: read once for the group, it would be "
        f"{once:.2f} times."
    )


_TITLE = "Speed-up of {} over LPDDR-only memory, batch {}"
FIGURES: Mapping[str, PaperFigure] = {
    "h2m2-fig12": OneModel(GPT3, _TITLE.format("GPT3-175B", 32), _over_hierarchical),
    "h2m2-fig13": OneModel(CHINCHILLA, _TITLE.format("Chinchilla-70B", 64), _until),
    "h2m2-fig15": OneModel(LLAMA, _TITLE.format("Llama2-70B", 128), _short, shares_kv=True),
}
