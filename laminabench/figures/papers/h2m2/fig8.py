"""H2M2 Figure 8: one sublayer kept in HBM as far as it fits, beside the best of all mappings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.catalog.find_model import model
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.bars import bars, legend_entries, point_names
from laminabench.figures.papers.h2m2.ground import BEST, GRID, GRID_LENGTHS, Way, how, means, speed_ups
from laminabench.figures.style import PAGE, foot, sentence, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Speed-up of keeping one sublayer in HBM and of the best mapping, GPT3-175B"
A_MAJOR, Q_MAJOR, F_MAJOR = Way("A-major", "a-major"), Way("Q-major", "q-major"), Way("F-major", "f-major")
PUBLISHED = {"Best": 1.50, "A-major": 1.40, "Q-major": 1.22, "F-major": 1.12}
_PUBLISHED_RATIO = 0.94
_PUBLISHED_MAPPINGS = 884_736.0


def make(ground: Ground) -> Made:
    """All four at every point."""
    frame = speed_ups((BEST, A_MAJOR, Q_MAJOR, F_MAJOR), "gpt3-175b", GRID)
    average = means(frame)
    source = how(GRID_LENGTHS)
    claims = [
        Claim(f"speed-up of {way}, average", "section 3.3", published, average[way], source)
        for way, published in PUBLISHED.items()
    ]
    claims.append(
        Claim(
            "A-major over the best",
            "section 3.3",
            _PUBLISHED_RATIO,
            average["A-major"] / average["Best"],
            source,
            remark="Sensitive to the DRAM efficiency and a tile's cycles, which are not in the paper.",
        )
    )
    claims.append(mappings())
    return Made(frame, tuple(claims), f"{sentence(source)}. Each is the best of its kind.")


def mappings() -> Claim:
    """How many mappings a search would have to try."""
    heads = model("gpt3-175b").heads
    return Claim(
        "mappings of GPT3-175B",
        "section 3.2",
        _PUBLISHED_MAPPINGS,
        float(heads**3),
        "computed: one of as many choices as there are heads, for each of three sublayers",
        remark=f"From no head to all of them there are {heads + 1} choices, so {(heads + 1) ** 3:,} "
        "mappings; the best one is found here among all of these.",
    )


def draw(made: Made) -> Figure:
    """Four bars a point."""
    figure, axes = sheet(width=PAGE, height=2.6)
    bars(axes, made.frame, point_names(made.frame), inches=PAGE, published=PUBLISHED)
    axes.set_ylabel("speed-up over LPDDR-only")
    handles, labels = legend_entries(axes)
    figure.legend(handles, labels, loc="outside upper left", ncols=5)
    foot(figure, made.how)
    return figure
