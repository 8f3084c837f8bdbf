"""H2M2's section 3: whole sublayers or heads, FlexGen's mapping, one sublayer in HBM (figures 6 to 8)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from laminabench.catalog.find_model import model
from laminabench.catalog.models import ModelShape
from laminabench.figures.claims import Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.bars import picture_of_points
from laminabench.figures.papers.h2m2.ground import (
    BEST,
    BOARD,
    GRID,
    GRID_LENGTHS,
    OF_FLEXGEN,
    Way,
    how,
    means,
    original,
    other_speed_ups,
    speed_ups,
)
from laminabench.figures.style import BLUE, ORANGE, PURPLE, VERMILION, sentence
from laminabench.systems.modelled.h2m2.boards import Board
from laminabench.systems.modelled.h2m2.mapping import IterationLoad, flexgen_shares, uniform

_MODEL = "gpt3-175b"
NAIVE = Way("Naive", "naive")
_FIG_6 = {"Naive": 1.27, "Best": 1.50}


def fig6(ground: Ground) -> Made:
    """Both granularities at every point, each with the mapping that is best for it."""
    frame = speed_ups((NAIVE, BEST), _MODEL, GRID)
    average, theirs = means(frame), _FIG_6
    source = how(GRID_LENGTHS)
    says = Section("section 3.1", source, "performance", BOARD)
    naive = frame[frame["way"] == "Naive"].set_index(["batch", "length"])["speed_up"]
    why_low = (
        f"It comes out low: the points are between {naive.min():.2f} and {naive.max():.2f}. Both chips "
        "of LPDDR-only work at once; while a sublayer that is placed whole runs, one of the two waits. Batch "
        f"32 at 1024 tokens alone gives {naive.loc[(32, 1024)]:.2f}; which points the paper averages is in "
        "no text."
    )
    claims = (
        says("speed-up of mapping heads, average", theirs["Best"], average["Best"]),
        says(
            "speed-up of mapping whole sublayers, average", theirs["Naive"], average["Naive"], remark=why_low
        ),
        says(
            "heads over whole sublayers, average",
            theirs["Best"] / theirs["Naive"],
            average["Best"] / average["Naive"],
            remark="The gap is wider here because mapping whole sublayers comes out slower than published.",
        ),
    )
    other = other_speed_ups((BEST, NAIVE), _MODEL, GRID)
    words = f"{sentence(source)}. {other}. While a sublayer that is placed whole runs, the other side waits."
    return Made(frame, claims, words, _draw_fig6)


def _draw_fig6(frame: pd.DataFrame) -> Figure:
    figure = picture_of_points(frame, _FIG_6, ncols=3, words={"Naive": "Whole sublayers", "Best": "Heads"})
    figure.axes[0].axhline(1, color="0.6", lw=0.6)
    return figure


# Of weights and of KV in HBM at all points: fitted to the published average.
SHARE = original().flexgen_share


def _worst_case(board: Board, shape: ModelShape, _: IterationLoad) -> tuple[float, float]:
    return flexgen_shares(board, shape, uniform(*GRID[-1], board))


SOLVED = Way("FlexGen, solved at each point", "flexgen", shares=flexgen_shares)
ONCE = Way("FlexGen, solved for the largest point", "flexgen", shares=_worst_case)
STATIC = Way(f"FlexGen, {SHARE} of weights and KV", "flexgen", shares=lambda *_: (SHARE, SHARE))
_FLEXGEN_COLOURS = {SOLVED.words: ORANGE, ONCE.words: PURPLE, STATIC.words: VERMILION, BEST.words: BLUE}
_FLEXGEN = 1.30


def fig7(ground: Ground) -> Made:
    """Three readings of what the paper says of FlexGen: it solves a programme, and its mapping is static."""
    frame = speed_ups((SOLVED, ONCE, STATIC, BEST), _MODEL, GRID)
    source = how(GRID_LENGTHS, also=(OF_FLEXGEN,))
    return Made(
        frame,
        _flexgen_claims(frame, source),
        f"{sentence(source)}. {other_speed_ups((BEST, SOLVED), _MODEL, GRID)}. The share is fitted to the "
        "published average; all three mappings of FlexGen's "
        "are clipped where HBM is too small for them.",
        _draw_fig7,
    )


def _flexgen_claims(frame: pd.DataFrame, source: str) -> list[Claim]:
    average = means(frame)
    says = Section("section 3.2", source, "performance", BOARD)
    unclear = (
        "The text says both that FlexGen solves its programme and that its mapping stays the same; which "
        "point it was solved for is not in it."
    )
    only_fitted = "The published average comes out only with a fixed share that was fitted to it."
    table = frame.pivot_table(index=["batch", "length"], columns="way", values="speed_up")
    ratio = table[STATIC.words] / table[BEST.words]
    first, last = ratio.loc[GRID[0]], ratio.loc[GRID[-1]]
    return [
        says("speed-up of the best mapping, average", 1.50, average[BEST.words]),
        says(
            "speed-up of FlexGen, average: solved at each point",
            _FLEXGEN,
            average[SOLVED.words],
            remark=unclear,
        ),
        says(
            "the same: solved once, for the largest batch and length",
            _FLEXGEN,
            average[ONCE.words],
            remark=unclear,
        ),
        says(
            f"the same: {SHARE} of weights and of KV in HBM",
            _FLEXGEN,
            average[STATIC.words],
            remark=f"{only_fitted} {unclear}",
            fitted=True,
        ),
        says(
            "FlexGen over the best, solved at each point", 0.87, average[SOLVED.words] / average[BEST.words]
        ),
        says(
            "gap between FlexGen and the best as batch and length grow",
            '"narrower"',
            f"FlexGen reaches {first:.2f} of the best at the smallest point, {last:.2f} at the largest",
            how=f"{source}; the fixed share",
        ),
    ]


def _draw_fig7(frame: pd.DataFrame) -> Figure:
    published = {BEST.words: 1.50} | dict.fromkeys((SOLVED.words, ONCE.words, STATIC.words), _FLEXGEN)
    return picture_of_points(frame, published, ncols=3, height=2.8, colours=_FLEXGEN_COLOURS)


_MAJORS = (Way("A-major", "a-major"), Way("Q-major", "q-major"), Way("F-major", "f-major"))
MAJORS = {"Best": 1.50, "A-major": 1.40, "Q-major": 1.22, "F-major": 1.12}


def fig8(ground: Ground) -> Made:
    """One sublayer kept in HBM as far as it fits, and the best of all mappings, at every point."""
    frame = speed_ups((BEST, *_MAJORS), _MODEL, GRID)
    average, heads = means(frame), model(_MODEL).heads
    source = how(GRID_LENGTHS)
    says = Section("section 3.3", source, "performance", BOARD)
    claims = [says(f"speed-up of {way}, average", theirs, average[way]) for way, theirs in MAJORS.items()]
    claims += [
        says(
            "A-major over the best",
            0.94,
            average["A-major"] / average["Best"],
            remark="Sensitive to the DRAM efficiency and a tile's cycles, which are not in the paper.",
        ),
        says(
            "mappings of GPT3-175B",
            884_736.0,
            float(heads**3),
            where="section 3.2",
            how="computed: one of as many choices as there are heads, for each of three sublayers",
            about="bookkeeping",
            rests_on=("shape",),
            remark=f"From no head to all of them there are {heads + 1} choices, so {(heads + 1) ** 3:,} "
            "mappings; the best one is found here among all of these.",
        ),
    ]
    other = other_speed_ups((BEST, *_MAJORS), _MODEL, GRID)
    words = f"{sentence(source)}. {other}. Each is the best of its kind."
    return Made(frame, claims, words, lambda shown: picture_of_points(shown, MAJORS, ncols=5))
