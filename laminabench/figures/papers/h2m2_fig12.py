"""H2M2 Figure 12: GPT3-175B on the board, beside Hierarchical and the best mapping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2_ground import GPT3, H2M2, HIERARCHICAL, how, lengths_text, means
from laminabench.figures.papers.h2m2_one_model import (
    ALSO,
    PUBLISHED_OF,
    SPAN,
    averaged,
    claims_of,
    draw_case,
    frame_of,
)
from laminabench.figures.style import sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Speed-up of GPT3-175B over LPDDR-only memory, batch 32"
_PUBLISHED = PUBLISHED_OF[GPT3.model]


def make(ground: Ground) -> Made:  # noqa: ARG001 - the catalogue's board and model
    """The three systems at the assumed lengths, and at all between."""
    frame = frame_of(GPT3)
    found, obtained = means(averaged(frame)), how(lengths_text(GPT3), also=ALSO)
    over_hierarchical = Claim(
        "H2M2's average over Hierarchical's",
        "section 7",
        1.36,
        float(found[H2M2.words] / found[HIERARCHICAL.words]),
        obtained,
        "times",
        fitted=True,  # as both averages are
    )
    claims = (*claims_of(GPT3, frame, _PUBLISHED, obtained), over_hierarchical)
    return Made(frame, claims, f"{sentence(obtained)}. {SPAN}")


def draw(made: Made) -> Figure:
    """Bars by length, and the averages; lines over all lengths."""
    return draw_case(made.frame, _PUBLISHED, made.how)
