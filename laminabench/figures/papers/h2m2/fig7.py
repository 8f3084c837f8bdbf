"""H2M2 Figure 7: the mapping that FlexGen's linear programme chooses, beside the best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.catalog.boards import Board
from laminabench.catalog.models import ModelShape
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.bars import bars, legend_entries, point_names
from laminabench.figures.papers.h2m2.ground import (
    BEST,
    GRID,
    GRID_LENGTHS,
    OF_FLEXGEN,
    Way,
    how,
    means,
    original,
    speed_ups,
)
from laminabench.figures.style import BLUE, ORANGE, PAGE, PURPLE, VERMILION, foot, sentence, sheet
from laminabench.sim.h2m2 import IterationLoad, flexgen_shares, uniform

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TITLE = "Speed-up of FlexGen's mapping and of the best, GPT3-175B"
_PUBLISHED_FLEXGEN, _PUBLISHED_BEST, _PUBLISHED_RATIO = 1.30, 1.50, 0.87
_WHERE = "section 3.2"


# Of weights and of KV in HBM at all points: fitted to the published average.
SHARE = original().flexgen_share


def _worst_case(board: Board, shape: ModelShape, _: IterationLoad) -> tuple[float, float]:
    return flexgen_shares(board, shape, uniform(*GRID[-1], board))


def _static(*_: object) -> tuple[float, float]:
    return SHARE, SHARE


SOLVED = Way("FlexGen, solved at each point", "flexgen", shares=flexgen_shares)
ONCE = Way("FlexGen, solved for the largest point", "flexgen", shares=_worst_case)
STATIC = Way(f"FlexGen, {SHARE} of weights and KV", "flexgen", shares=_static)
_COLOURS = {
    SOLVED.words: ORANGE,
    ONCE.words: PURPLE,
    STATIC.words: VERMILION,
    BEST.words: BLUE,
}


def make(ground: Ground) -> Made:
    """Three readings of what the paper says of FlexGen: it solves a programme, and its mapping is static."""
    frame = speed_ups((SOLVED, ONCE, STATIC, BEST), "gpt3-175b", GRID)
    source = how(GRID_LENGTHS, also=(OF_FLEXGEN,))
    return Made(
        frame,
        _claims(frame, source),
        f"{sentence(source)}. The share is fitted to the published average; all three mappings of FlexGen's "
        "are clipped where HBM is too small for them.",
    )


def _claims(frame: pd.DataFrame, source: str) -> tuple[Claim, ...]:
    average = means(frame)
    unclear = (
        "The text says both that FlexGen solves its programme and that its mapping stays the same; which "
        "point it was solved for is not in it."
    )
    return (
        Claim("speed-up of the best mapping, average", _WHERE, _PUBLISHED_BEST, average[BEST.words], source),
        Claim(
            "speed-up of FlexGen, average: solved at each point",
            _WHERE,
            _PUBLISHED_FLEXGEN,
            average[SOLVED.words],
            source,
            remark=unclear,
        ),
        Claim(
            "the same: solved once, for the largest batch and length",
            _WHERE,
            _PUBLISHED_FLEXGEN,
            average[ONCE.words],
            source,
            remark=unclear,
        ),
        Claim(
            f"the same: {SHARE} of weights and of KV in HBM",
            _WHERE,
            _PUBLISHED_FLEXGEN,
            average[STATIC.words],
            source,
            remark="The published average comes out only with a fixed share that was fitted to it. "
            + unclear,
            fitted=True,
        ),
        Claim(
            "FlexGen over the best, solved at each point",
            _WHERE,
            _PUBLISHED_RATIO,
            average[SOLVED.words] / average[BEST.words],
            source,
        ),
        _narrowing(frame, source),
    )


def _narrowing(frame: pd.DataFrame, source: str) -> Claim:
    table = frame.pivot_table(index=["batch", "length"], columns="way", values="speed_up")
    ratio = table[STATIC.words] / table[BEST.words]
    first, last = ratio.loc[GRID[0]], ratio.loc[GRID[-1]]
    return Claim(
        "gap between FlexGen and the best as batch and length grow",
        _WHERE,
        '"narrower"',
        f"FlexGen reaches {first:.2f} of the best at the smallest point, {last:.2f} at the largest",
        f"{source}; the fixed share",
    )


def draw(made: Made) -> Figure:
    """Four bars a point."""
    figure, axes = sheet(width=PAGE, height=2.8)
    published = {
        BEST.words: _PUBLISHED_BEST,
        **dict.fromkeys((SOLVED.words, ONCE.words, STATIC.words), _PUBLISHED_FLEXGEN),
    }
    bars(axes, made.frame, point_names(made.frame), inches=PAGE, published=published, colours=_COLOURS)
    axes.set_ylabel("speed-up over LPDDR-only")
    handles, labels = legend_entries(axes)
    figure.legend(handles, labels, loc="outside upper left", ncols=3)
    foot(figure, made.how)
    return figure
