"""Table 3: the models that the paper evaluates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.style import table_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Large language models used for evaluation"
# GB of parameters, layers, hidden dimension, group size, as printed.
PUBLISHED = {
    "llama-33b": (64.7, 60, 6656, 1),
    "llama-65b": (130.1, 80, 8192, 1),
    "llama3-70b": (137.5, 80, 8192, 8),
}
_LETTERS = {"L": "layers\nL", "d": "hidden\nd", "G": "group\nG"}
_HOW = "computed: the catalogue's shape; layers, norms and one vocabulary table of 32,000 rows"


def make(ground: Ground) -> Made:
    """The paper's values beside those that follow from the shapes."""
    import pandas as pd

    rows: list[tuple[object, ...]] = []
    claims: list[Claim] = []
    for name, (published_gb, *published) in PUBLISHED.items():
        shape = model(name)
        ours = (shape.layers, shape.hidden, shape.group)
        counted, whole = shape.table3_bytes / GB, shape.weight_bytes / GB
        rows.append((name, published_gb, counted, whole, *ours))
        claims.append(Claim(f"parameters of {name}", "table 3", published_gb, counted, _HOW, "GB"))
        claims += [
            Claim(
                f"{letter} of {name}", "table 3", float(printed), float(mine), "catalogue: the model's config"
            )
            for letter, printed, mine in zip(_LETTERS, published, ours, strict=True)
        ]
    columns = [
        "model",
        "published GB",
        "ours, counted\nas there, GB",
        "with all\ntables, GB",
        *_LETTERS.values(),
    ]
    how = (
        "Computed from the catalogue's shapes. The paper counts one vocabulary table of 32,000 rows; "
        "every model has two, and LLaMA3's have 128,256."
    )
    return Made(pd.DataFrame(rows, columns=columns), tuple(claims), how)


def draw(made: Made) -> Figure:
    """The table."""
    shown = made.frame.map(lambda value: f"{value:.1f}" if isinstance(value, float) else value)
    return table_picture(shown, note=made.how)
