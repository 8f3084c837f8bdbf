"""v1 Table 1: what memory costs on enterprise- and consumer-grade accelerators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.catalog.hardware import GB, device
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.style import table_picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TITLE = "Memory and its price, of enterprise- and consumer-grade accelerators"
# $/GB and $/(GB/s) as printed.
PUBLISHED = {
    "a100-80g": (219, 9.04),
    "h100": (456, 10.90),
    "rtx-3090": (67, 1.71),
    "rx-7900-xtx": (42, 1.04),
    "arc-a770": (22, 0.63),
}
_ENTERPRISE = ("a100-80g", "h100")
_HOW = "computed: the catalogue's purchase price over memory and bandwidth"
_COLUMNS = ("accelerator", "price, $", "memory, GB", "bandwidth, GB/s", "$/GB", "$/(GB/s)")


def make(ground: Ground) -> Made:  # noqa: ARG001 - prices are the catalogue's
    """The catalogue's devices, whose prices and memory are the paper's."""
    import pandas as pd  # noqa: PLC0415 - slow to import

    rows = []
    for name in PUBLISHED:
        each = device(name)
        assert each.purchase is not None
        memory, bandwidth = each.memory_bytes / GB, each.bandwidth_bytes_per_s / GB
        usd = each.purchase.usd
        rows.append((name, usd, memory, bandwidth, usd / memory, usd / bandwidth))
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    for place, column in enumerate(_COLUMNS[4:]):
        frame[f"published {column}"] = [pair[place] for pair in PUBLISHED.values()]
    claims = [
        Claim(f"{column} of {name}", "table 1", PUBLISHED[name][place], float(value), _HOW, column)
        for place, column in enumerate(_COLUMNS[4:])
        for name, value in zip(frame["accelerator"], frame[column], strict=True)
    ]
    alphas = _alphas(frame)
    claims += [
        Claim(
            "memory and bandwidth a dollar of consumer cards over the enterprise ones', any pair",
            "section 1",
            3.0,
            min(alphas),
            _HOW,
            "times",
            "at least",
        ),
        Claim(
            "alpha: how much more of both, memory and bandwidth, the same money buys, lowest and highest "
            "pair",
            "section 4.1",
            (3.27, 17.3),
            (min(alphas), max(alphas)),
            f"{_HOW}; the paper divides the rounded numbers of its table",
        ),
    ]
    return Made(
        frame, tuple(claims), "Computed: purchase prices and memory of the catalogue, which are v1's own."
    )


def _alphas(frame: pd.DataFrame) -> list[float]:
    """Of each enterprise and consumer card: what both memory and bandwidth are at least cheaper by."""
    high = frame["accelerator"].isin(_ENTERPRISE)
    per_unit = list(_COLUMNS[4:])
    dear, cheap = (frame[rows][per_unit].to_numpy() for rows in (high, ~high))
    return [float(min(each / other)) for each in dear for other in cheap]


def draw(made: Made) -> Figure:
    """The table, with the printed numbers beside."""
    return table_picture(made.frame, note=made.how)
