"""Table 2: the letters of the paper's formulas, and what they stand for with LLaMA3-70B."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.catalog.find_model import model
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.v2.fig2 import BATCHES
from laminabench.figures.papers.v2.fig4 import CONTEXTS
from laminabench.figures.style import table_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Notation of the performance analysis, with the values of LLaMA3-70B"
_HOW = "computed: the catalogue's shape of the model"


def make(ground: Ground) -> Made:
    """The paper's values beside those of the catalogue."""
    import pandas as pd

    shape = model("llama3-70b")
    numbers = (
        ("N", "parameters of the model", 70e9, shape.parameters),
        ("d", "hidden dimension", 8192, shape.hidden),
        ("L", "layers", 80, shape.layers),
        ("G", "group size of GQA", 8, shape.group),
        ("e", "bytes per element", 2, shape.dtype_bytes),
    )
    rows = [(letter, words, f"{printed:,.0f}", f"{ours:,.0f}") for letter, words, printed, ours in numbers]
    rows += [
        ("B", "batch size", "1 to 1,024", f"{BATCHES[0]:,} to {BATCHES[-1]:,} in figure 2"),
        ("l", "sequence length", "128 to 32,768", f"{CONTEXTS[0]:,} to {CONTEXTS[-1]:,} in figure 4"),
    ]
    frame = pd.DataFrame(rows, columns=["letter", "stands for", "published", "ours"])
    claims = tuple(
        Claim(f"{letter}, {words}", "table 2", float(printed), float(ours), _HOW)
        for letter, words, printed, ours in numbers
    )
    how = "Computed: the catalogue's shape of LLaMA3-70B; B and l are what the figures here go over."
    return Made(frame, claims, how)


def draw(made: Made) -> Figure:
    """The table."""
    return table_picture(made.frame, note=made.how)
