"""v1 Table 4: the models it measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.catalog.find_model import model
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.style import COLUMN, table_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Models of the evaluation"
PUBLISHED_GB = {"llama-13b": 25.7, "llama-33b": 64.6}


def make(ground: Ground) -> Made:  # noqa: ARG001 - shapes are the catalogue's
    """The catalogue's shapes."""
    import pandas as pd  # noqa: PLC0415 - slow to import

    rows = []
    for name, published in PUBLISHED_GB.items():
        shape = model(name)
        rows.append((name, published, shape.table3_bytes / 1e9, shape.layers, shape.hidden))
    columns = ["model", "published\nGB", "ours\nGB", "layers", "hidden\nsize"]
    claims = tuple(
        Claim(
            f"weights of {name}",
            "table 4",
            published,
            ours,
            "computed: bf16, the layers and one vocabulary table of 32,000 rows",
            "GB",
        )
        for name, published, ours, _, _ in rows
    )
    return Made(
        pd.DataFrame(rows, columns=columns),
        claims,
        "Computed: the catalogue's shapes in bf16, one vocabulary table counted.",
    )


def draw(made: Made) -> Figure:
    """The table."""
    return table_picture(made.frame, width=COLUMN, note=made.how)
