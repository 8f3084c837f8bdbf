"""H2M2 Figure 15: Llama2-70B on the board, whose query heads share KV in groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2_assumed import mean_speed_up_assuming
from laminabench.figures.papers.h2m2_ground import H2M2, LLAMA, OF_GQA, how, lengths_text, original
from laminabench.figures.papers.h2m2_one_model import (
    ALSO,
    PUBLISHED_OF,
    SPAN,
    claims_of,
    draw_case,
    frame_of,
    hierarchical_leads,
)
from laminabench.figures.style import sentence

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TITLE = "Speed-up of Llama2-70B over LPDDR-only memory, batch 128"
_PUBLISHED = PUBLISHED_OF[LLAMA.model]


def make(ground: Ground) -> Made:  # noqa: ARG001 - the catalogue's board and model
    """The three systems at the assumed lengths, and at all between."""
    frame, obtained = frame_of(LLAMA), how(lengths_text(LLAMA), also=(*ALSO, OF_GQA))
    first, *others = claims_of(LLAMA, frame, _PUBLISHED, obtained)
    claims = (replace(first, remark=_read_once()), *others, _short(frame, obtained))
    words = "Each query head reads its group's KV from memory"
    return Made(frame, claims, f"{sentence(obtained)}. {words}. {SPAN}")


def _read_once() -> str:
    """Why KV is read again by each query head."""
    once = mean_speed_up_assuming(H2M2, LLAMA, replace(original(), reread_kv=False))
    return (
        "The paper says that a group shares its KV's storage, not how often that is read. Here every query "
        "head reads it, which is a switch fitted to this number: read once for the group, it would be "
        f"{once:.2f} times."
    )


def _short(frame: pd.DataFrame, obtained: str) -> Claim:
    leads = hierarchical_leads(frame)
    ours = "none"
    if len(leads):
        ours = f"at {leads.index.min()} to {leads.index.max()} tokens, by up to {leads.max():.1f} %"
    return Claim(
        "lengths at which Hierarchical outperforms H2M2",
        "section 5.2.3",
        '"shorter sequence lengths"',
        ours,
        obtained,
    )


def draw(made: Made) -> Figure:
    """Bars by length and the averages; lines over all lengths."""
    return draw_case(made.frame, _PUBLISHED, made.how)
