"""Table 5: the deployments of about equal cost that Lamina and vLLM are compared on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.style import table_picture
from laminabench.systems.registry import system

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Equal-cost hardware configurations"
_PUBLISHED_USD = {
    ("llama-33b", "lamina"): 20.32,
    ("llama-33b", "vllm"): 22.12,
    ("llama-65b", "lamina"): 40.64,
    ("llama-65b", "vllm"): 44.24,
    ("llama3-70b", "lamina"): 40.64,
    ("llama3-70b", "vllm"): 44.24,
}


def make(ground: Ground) -> Made:
    """The catalogue's prices of the papers' deployments."""
    import pandas as pd

    rows = []
    for (model_name, system_name), published in _PUBLISHED_USD.items():
        deployment = parse_deployment(system(system_name).default_deployment(model(model_name)))
        rows.append((model_name, system_name, str(deployment), published, deployment.usd_per_hour))
    frame = pd.DataFrame(rows, columns=["model", "system", "deployment", "published $/h", "ours $/h"])
    claims = tuple(
        Claim(
            f"price of {deployment} ({name}, {who})",
            "table 5",
            published,
            ours,
            "computed: counts times table 1's prices",
            "$/h",
        )
        for name, who, deployment, published, ours in rows
    )
    return Made(frame, claims, "Computed: prices of the catalogue, which are the paper's own.")


def draw(made: Made) -> Figure:
    """The table."""
    return table_picture(made.frame, note=made.how)
