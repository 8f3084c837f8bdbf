"""v1 Table 4: the models it measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.style import COLUMN, table_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Models of the evaluation"
# GB of weights, layers, hidden size, as printed.
PUBLISHED = {"llama-13b": (25.7, 40, 5120), "llama-33b": (64.6, 60, 6656)}
_HOW = "computed: bf16, the layers and one vocabulary table of 32,000 rows"
_CONFIG = "catalogue: the model's config"


def make(ground: Ground) -> Made:
    """The catalogue's shapes."""
    import pandas as pd

    rows: list[tuple[object, ...]] = []
    claims: list[Claim] = []
    for name, (published_gb, layers, hidden) in PUBLISHED.items():
        shape = model(name)
        counted = shape.table3_bytes / GB
        rows.append((name, published_gb, counted, shape.layers, shape.hidden))
        claims += [
            Claim(f"weights of {name}", "table 4", published_gb, counted, _HOW, "GB"),
            Claim(f"layers of {name}", "table 4", float(layers), float(shape.layers), _CONFIG),
            Claim(f"hidden size of {name}", "table 4", float(hidden), float(shape.hidden), _CONFIG),
        ]
    columns = ["model", "published\nGB", "ours\nGB", "layers", "hidden\nsize"]
    return Made(
        pd.DataFrame(rows, columns=columns),
        tuple(claims),
        "Computed: the catalogue's shapes in bf16, one vocabulary table counted.",
    )


def draw(made: Made) -> Figure:
    """The table."""
    return table_picture(made.frame, width=COLUMN, note=made.how)
