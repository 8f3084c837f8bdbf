"""H2M2 Figure 18: the board beside eight HBM devices, for GPT3-175B."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.bars import bars, legend_entries, point_names
from laminabench.figures.papers.h2m2.ground import (
    EIGHT_HBM,
    GPT3,
    H2M2,
    OF_EIGHT_HBM,
    OF_TRANSLATION,
    how,
    lengths_text,
    means,
    original,
    points_of,
    speed_up,
    speed_ups,
)
from laminabench.figures.style import PAGE, foot, sentence, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Speed-up of GPT3-175B with H2M2 and with eight HBM devices, batch 32"
_PUBLISHED = {H2M2.words: 1.46, EIGHT_HBM.words: 2.29}
_WHERE = "section 5.5"


def make(ground: Ground) -> Made:
    """Both at the assumed lengths; the eight devices also without communication between them."""
    points = points_of(GPT3)
    frame = speed_ups((H2M2, EIGHT_HBM), GPT3.model, points)
    eight = frame["way"] == EIGHT_HBM.words
    silent = replace(original(), hbm_barrier_s=0.0)
    frame.loc[eight, "lowest"] = frame.loc[eight, "speed_up"]
    frame.loc[eight, "highest"] = [speed_up(EIGHT_HBM, GPT3.model, point, silent) for point in points]
    obtained = how(lengths_text(GPT3), also=(OF_TRANSLATION, OF_EIGHT_HBM))
    found = means(frame)
    claims = (
        Claim(
            "8-HBM over LPDDR-only, GPT3-175B, average",
            _WHERE,
            _PUBLISHED[EIGHT_HBM.words],
            float(found[EIGHT_HBM.words]),
            obtained,
            "times",
            remark="The cost of a barrier between the devices is fitted to this. Without communication it is "
            f"{frame['highest'].mean():.2f} times.",
            fitted=True,
        ),
        Claim(
            "8-HBM's average over H2M2's",
            _WHERE,
            1.57,
            float(found[EIGHT_HBM.words] / found[H2M2.words]),
            obtained,
            "times",
            remark="Both averages are fitted.",
            fitted=True,
        ),
    )
    return Made(frame, claims, f"{sentence(obtained)}. Lines end where 8-HBM would be without communication.")


def draw(made: Made) -> Figure:
    """Bars by length, and the averages beside the paper's."""
    figure, axes = sheet(width=PAGE, height=2.6)
    bars(axes, made.frame, point_names(made.frame, batches=False), inches=PAGE, published=_PUBLISHED)
    axes.set(xlabel="length of the requests, tokens", ylabel="speed-up over LPDDR-only")
    figure.legend(*legend_entries(axes), loc="outside upper left", ncols=4)
    foot(figure, made.how)
    return figure
