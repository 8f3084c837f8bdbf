"""Table 1: the accelerators that the paper weighs against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from laminabench.catalog.hardware import GB, Device, device
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.style import table_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Specifications of H100, H20 and TPU v6e"
DEVICES = ("h100", "h20", "tpu-v6e")


def _usd(each: Device) -> float:
    assert each.price_usd_per_hour is not None
    return each.price_usd_per_hour


# What, its unit, as printed for each device, and the catalogue's.
_ROWS: tuple[tuple[str, str, tuple[float | None, ...], Callable[[Device], float | None]], ...] = (
    ("BF16 rate", "TFLOP/s", (989, 148, 918), lambda each: each.flops_for("bf16") / 1e12),
    ("memory", "GB", (80, 96, 32), lambda each: each.memory_bytes / GB),
    ("memory bandwidth", "TB/s", (3.35, 4.0, 1.64), lambda each: each.bandwidth_bytes_per_s / 1e12),
    ("power rating", "W", (700, 400, None), lambda each: each.power_w),
    ("inter-chip bandwidth", "GB/s", (450, 450, 448), lambda each: each.interchip_bytes_per_s / GB),
    ("network bandwidth", "Gbit/s", (400, 400, 200), lambda each: each.nic_bytes_per_s * 8 / GB),
    ("price", "$/h", (11.06, 4.63, 2.70), _usd),
)
_COMPUTED = "computed: from the catalogue's values, which are the table's"


def make(ground: Ground) -> Made:
    """The catalogue's values, and what each buys for a dollar."""
    import pandas as pd

    found = {name: device(name) for name in DEVICES}
    frame = pd.DataFrame(
        [
            *((what, unit, *map(ours, found.values())) for what, unit, _, ours in _ROWS),
            ("BF16 rate for its price", "TFLOP/s per $/h", *map(_flops_per_usd, found.values())),
            ("bandwidth for its price", "GB/s per $/h", *map(_bandwidth_per_usd, found.values())),
        ],
        columns=["", "unit", *DEVICES],
    )
    cells = tuple(
        Claim(
            f"{what} of {name}",
            "table 1",
            printed,
            ours(found[name]),
            "catalogue: entered from this table",
            unit,
            entered=True,
        )
        for what, unit, row, ours in _ROWS
        for name, printed in zip(DEVICES, row, strict=True)
        if printed is not None
    )
    h100, h20, tpu = found.values()
    ratios = (
        Claim(
            "BF16 rate of H20 over H100's",
            "section 2.2.2",
            15.0,
            100 * h20.flops_for("bf16") / h100.flops_for("bf16"),
            _COMPUTED,
            "%",
        ),
        Claim(
            "network bandwidth over inter-chip bandwidth, of H100",
            "section 1.2",
            10.0,
            100 * h100.nic_bytes_per_s / h100.interchip_bytes_per_s,
            _COMPUTED,
            "%",
            remark='50 GB/s over 450 GB/s are 11 %; the paper says "~10%".',
        ),
        Claim(
            "BF16 rate a dollar of TPU v6e over H100's",
            "section 1.1",
            '"significantly cheaper"',
            f"{_flops_per_usd(tpu) / _flops_per_usd(h100):.2f} times",
            _COMPUTED,
        ),
        Claim(
            "memory bandwidth a dollar of H20 over H100's",
            "section 1.1",
            '"significantly cheaper"',
            f"{_bandwidth_per_usd(h20) / _bandwidth_per_usd(h100):.2f} times",
            _COMPUTED,
        ),
        Claim(
            "memory bandwidth a watt of H20 over H100's",
            "section 1.1",
            '"significantly cheaper"',
            f"{_bandwidth_per_w(h20) / _bandwidth_per_w(h100):.2f} times",
            _COMPUTED,
        ),
        Claim(
            "TPU v6e or H20 have both, rate and bandwidth, for less than H100",
            "section 1.1",
            '"but not both"',
            _both(h100, h20, tpu),
            _COMPUTED,
            remark="At the table's own prices TPU v6e buys more of both; H20 buys more bandwidth only.",
        ),
    )
    how = "The catalogue's values, entered from the paper's table; the last two rows are computed from them."
    return Made(frame, (*cells, *ratios), how)


def _flops_per_usd(each: Device) -> float:
    return each.flops_for("bf16") / 1e12 / _usd(each)


def _bandwidth_per_usd(each: Device) -> float:
    return each.bandwidth_bytes_per_s / GB / _usd(each)


def _bandwidth_per_w(each: Device) -> float:
    assert each.power_w is not None
    return each.bandwidth_bytes_per_s / GB / each.power_w


def _both(reference: Device, *others: Device) -> str:
    """Who buys more of rate and of bandwidth than the reference for a dollar."""
    better = [
        each.name
        for each in others
        if _flops_per_usd(each) > _flops_per_usd(reference)
        and _bandwidth_per_usd(each) > _bandwidth_per_usd(reference)
    ]
    return f"{', '.join(better)} has both" if better else "neither has both"


def draw(made: Made) -> Figure:
    """The table."""
    return table_picture(made.frame, note=made.how)
