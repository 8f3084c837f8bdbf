"""v1 Table 3: how fast the network has to be so that computation devices never wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, device
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.v1.model_part import (
    BATCHES,
    MEASURED_CARD,
    TABLE3,
    implied_mfu,
    least_bandwidth,
    mfu,
)
from laminabench.figures.style import sentence, table_picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TITLE = "Least bandwidth between computation and memory devices"
_REMARK = (
    "The formula is the paper's; what differs is the MFU. The printed bandwidths imply {implied:.0f} % at "
    "this batch, measured kernels of vLLM and Vidur come to {low:.0f} to {high:.0f} %: v1's model part "
    "was slower."
)


def make(ground: Ground) -> Made:
    """The paper's formula with the MFU of both cost sets, and the MFU that the printed numbers imply."""
    import pandas as pd

    card = device(MEASURED_CARD)
    how = f"modelled: MFU of {ground.sets} on A100 in the paper's formula"
    rows, claims = [], []
    for (name, count), published in TABLE3.items():
        shape = model(name)
        shares = [mfu(costs, shape, card, count, np.array(BATCHES)) for costs in ground.costs()]
        low, high = np.min(shares, axis=0), np.max(shares, axis=0)
        for place, batch in enumerate(BATCHES):
            ends = [float(least_bandwidth(shape, card, count, float(end[place]))) / GB for end in (low, high)]
            implied = 100 * implied_mfu(shape, card, count, published[place] * GB)
            percents = 100 * float(low[place]), 100 * float(high[place])
            rows.append((name, count, batch, published[place], *ends, implied, *percents))
            claims.append(
                Claim(
                    f"{name} on {count} A100, batch {batch}",
                    "table 3",
                    published[place],
                    (ends[0], ends[1]),
                    how,
                    "GB/s",
                    remark=_REMARK.format(implied=implied, low=percents[0], high=percents[1]),
                )
            )
    columns = [
        *("model", "A100", "batch", "published\nGB/s", "ours, low\nGB/s", "ours, high\nGB/s"),
        *("implied\nMFU, %", "MFU, low\n%", "MFU, high\n%"),
    ]
    frame = pd.DataFrame(rows, columns=columns)
    claims.append(
        Claim(
            "no more is needed, for batches up to 1024",
            "section 4.2",
            20.0,
            float(frame["ours, high\nGB/s"].max()),
            how,
            "GB/s",
            "at most",
            f"With the MFU of measured kernels these need more: {_above(frame, 20.0)}. The rows are of all "
            "devices together, and each A100 with a 200 Gbit/s NIC of its own has 25 GB/s.",
        )
    )
    return Made(
        frame,
        tuple(claims),
        f"{sentence(how)}; all devices of a row together. Implied MFU: what the published value stands for.",
    )


def _above(frame: pd.DataFrame, limit: float) -> str:
    """From which batch on a model's upper end is above the limit."""
    first = frame[frame["ours, high\nGB/s"] > limit].groupby("model", sort=False)["batch"].min()
    return ", ".join(f"{name} from batch {batch} on" for name, batch in first.items())


def draw(made: Made) -> Figure:
    """The table, a row for each cell of the paper's."""
    return table_picture(made.frame, note=made.how)
