"""H2M2 Figure 13: Chinchilla-70B on the board, beside Hierarchical and the best mapping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2_ground import CHINCHILLA, how, lengths_text
from laminabench.figures.papers.h2m2_one_model import (
    ALSO,
    PUBLISHED_OF,
    SPAN,
    STEP,
    claims_of,
    draw_case,
    frame_of,
    hierarchical_leads,
)
from laminabench.figures.style import sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Speed-up of Chinchilla-70B over LPDDR-only memory, batch 64"
_PUBLISHED = PUBLISHED_OF[CHINCHILLA.model]


def make(ground: Ground) -> Made:  # noqa: ARG001 - the catalogue's board and model
    """The three systems at the assumed lengths, and at all between."""
    frame, obtained = frame_of(CHINCHILLA), how(lengths_text(CHINCHILLA), also=ALSO)
    leads = hierarchical_leads(frame)
    short = Claim(
        "lengths at which Hierarchical outperforms H2M2",
        "section 5.2.1",
        512,
        float(leads.index.max()) if len(leads) else 0.0,
        f"{obtained}; looked for in steps of {STEP}",
        "tokens",
        "at most",
        f"There the board's HBM holds everything; Hierarchical is the faster by at most {leads.max():.1f} %.",
    )
    claims = (*claims_of(CHINCHILLA, frame, _PUBLISHED, obtained), short)
    return Made(frame, claims, f"{sentence(obtained)}. {SPAN}")


def draw(made: Made) -> Figure:
    """Bars by length and the averages; lines over all lengths."""
    return draw_case(made.frame, _PUBLISHED, made.how)
