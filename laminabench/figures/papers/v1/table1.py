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
# Price, GB, GB/s, $/GB and $/(GB/s) as printed.
PUBLISHED = {
    "a100-80g": (17500, 80, 1935, 219, 9.04),
    "h100": (36500, 80, 3350, 456, 10.90),
    "rtx-3090": (1600, 24, 936.2, 67, 1.71),
    "rx-7900-xtx": (1000, 24, 960, 42, 1.04),
    "arc-a770": (350, 16, 560, 22, 0.63),
}
_ENTERPRISE = ("a100-80g", "h100")
_HOW = "computed: the catalogue's purchase price over memory and bandwidth"
_ENTERED = "catalogue: entered from this table"
_COLUMNS = ("accelerator", "price, $", "memory, GB", "bandwidth, GB/s", "$/GB", "$/(GB/s)")
_PER_UNIT = _COLUMNS[4:]


def make(ground: Ground) -> Made:
    """The catalogue's devices, whose prices and memory are the paper's."""
    import pandas as pd

    rows = []
    for name in PUBLISHED:
        each = device(name)
        assert each.purchase is not None
        memory, bandwidth = each.memory_bytes / GB, each.bandwidth_bytes_per_s / GB
        usd = each.purchase.usd
        rows.append((name, usd, memory, bandwidth, usd / memory, usd / bandwidth))
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    for place, column in enumerate(_COLUMNS[1:]):
        if column in _PER_UNIT:
            frame[f"published {column}"] = [printed[place] for printed in PUBLISHED.values()]
    claims = [
        _cell(name, place, float(frame[_COLUMNS[1 + place]][row]))
        for place in range(len(_COLUMNS) - 1)
        for row, name in enumerate(PUBLISHED)
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


def _cell(name: str, place: int, ours: float) -> Claim:
    """One of the table's; its last two columns follow from the others."""
    column, printed = _COLUMNS[1 + place], PUBLISHED[name][place]
    if column in _PER_UNIT:
        return Claim(f"{column} of {name}", "table 1", printed, ours, _HOW, column)
    what, unit = column.split(", ")
    return Claim(f"{what} of {name}", "table 1", printed, ours, _ENTERED, unit, entered=True)


def _alphas(frame: pd.DataFrame) -> list[float]:
    """Of each enterprise and consumer card: what both memory and bandwidth are at least cheaper by."""
    high = frame["accelerator"].isin(_ENTERPRISE)
    dear, cheap = (frame[rows][list(_PER_UNIT)].to_numpy() for rows in (high, ~high))
    return [float(min(each / other)) for each in dear for other in cheap]


def draw(made: Made) -> Figure:
    """The table, with the printed numbers beside."""
    return table_picture(made.frame, note=made.how)
