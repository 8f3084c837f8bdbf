"""H2M2 Figure 6: what splitting sublayers by heads gains over placing them whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.bars import bars, legend_entries, point_names
from laminabench.figures.papers.h2m2.ground import BEST, GRID, GRID_LENGTHS, Way, how, means, speed_ups
from laminabench.figures.style import PAGE, foot, sentence, sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TITLE = "Speed-up of mapping whole sublayers and of mapping heads, GPT3-175B"
NAIVE = Way("Naive", "naive")
PUBLISHED = {"Naive": 1.27, "Best": 1.50}
_WORDS = {"Naive": "Whole sublayers", "Best": "Heads"}
_WHERE = "section 3.1"


def make(ground: Ground) -> Made:
    """Both granularities at every point, each with the mapping that is best for it."""
    frame = speed_ups((NAIVE, BEST), "gpt3-175b", GRID)
    average = means(frame)
    source = how(GRID_LENGTHS)
    claims = (
        Claim("speed-up of mapping heads, average", _WHERE, PUBLISHED["Best"], average["Best"], source),
        Claim(
            "speed-up of mapping whole sublayers, average",
            _WHERE,
            PUBLISHED["Naive"],
            average["Naive"],
            source,
            remark=_why_not(frame),
        ),
        Claim(
            "heads over whole sublayers, average",
            _WHERE,
            PUBLISHED["Best"] / PUBLISHED["Naive"],
            average["Best"] / average["Naive"],
            source,
            remark="The gap is wider here because mapping whole sublayers comes out slower than published.",
        ),
    )
    return Made(
        frame,
        claims,
        f"{sentence(source)}. While a sublayer that is placed whole runs, the other side waits.",
    )


def _why_not(frame: pd.DataFrame) -> str:
    naive = frame[frame["way"] == "Naive"].set_index(["batch", "length"])["speed_up"]
    return (
        f"It comes out low: the points are between {naive.min():.2f} and {naive.max():.2f}. Both chips "
        "of LPDDR-only work at once; while a sublayer that is placed whole runs, one of the two waits. Batch "
        f"32 at 1024 tokens alone gives {naive.loc[(32, 1024)]:.2f}; which points the paper averages is in "
        "no text."
    )


def draw(made: Made) -> Figure:
    """Two bars a point."""
    figure, axes = sheet(width=PAGE, height=2.6)
    bars(axes, made.frame, point_names(made.frame), inches=PAGE, published=PUBLISHED)
    axes.axhline(1, color="0.6", lw=0.6)
    axes.set_ylabel("speed-up over LPDDR-only")
    handles, labels = legend_entries(axes)
    figure.legend(handles, [_WORDS.get(word, word) for word in labels], loc="outside upper left", ncols=3)
    foot(figure, made.how)
    return figure
