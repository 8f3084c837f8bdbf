"""What v1 calls computation: a decode step without attention, its rate, and the network that it asks for.

Figure 3 is the rate by batch, table 3 the network, and figure 5 how little several small cards speed it up.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.cost_terms import ACTIVATION_BYTES
from laminabench.catalog.costs import CostSet
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, Device, device
from laminabench.catalog.models import ModelShape
from laminabench.figures.claims import Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import set_bars, stacked
from laminabench.figures.style import CYCLE, PUBLISHED, powers_of_two, published_line, sentence, sheet

# The A100 that the cost sets were measured on.
MEASURED_CARD = "a100-80g-sxm"
# v1 Table 3, GB/s: by model and its number of A100, for these batches.
BATCHES = (128, 256, 512, 1024)
TABLE3 = {
    ("llama-13b", 1): (4.90, 8.12, 9.08, 10.06),
    ("llama-33b", 2): (5.94, 9.31, 11.56, 12.53),
    ("llama-65b", 4): (7.55, 11.78, 13.92, 15.90),
}


def parameters(shape: ModelShape) -> float:
    """N as the papers count it: the layers and one vocabulary table."""
    return shape.table3_bytes / shape.dtype_bytes


def mfu(
    costs: CostSet, shape: ModelShape, card: Device, tp: int, batches: NDArray[np.int64]
) -> NDArray[np.float64]:
    """2 N B over the step's time and the peak rate of all devices."""
    seconds = costs.model_step_seconds(shape, card, tp, batches)
    share: NDArray[np.float64] = (
        2 * parameters(shape) * batches / (seconds * tp * card.flops_for(shape.dtype))
    )
    return share


def least_bandwidth(
    shape: ModelShape, card: Device, count: int, share: float | NDArray[np.float64]
) -> float | NDArray[np.float64]:
    """Section 4.2: 4 e d B L bytes in the time of 2 N B operations; the batch cancels out.

    The rate is of all devices together: taken for one, Table 3 would imply more than the peak.
    """
    sent = 4 * ACTIVATION_BYTES * shape.hidden * shape.layers
    return sent * share * count * card.flops_for(shape.dtype) / (2 * parameters(shape))


def implied_mfu(shape: ModelShape, card: Device, count: int, bytes_per_s: float) -> float:
    """The MFU behind a published bandwidth: `least_bandwidth` turned around."""
    return float(bytes_per_s / least_bandwidth(shape, card, count, 1.0))


_MODEL = "llama-13b"
_MOST = 2048  # as far as the cost sets were measured
_IMPLIED = "implied by v1 Table 3"


def fig3(ground: Ground) -> Made:
    """MFU by batch of every cost set and of the ideal, with what Table 3 implies."""
    shape, card = model(_MODEL), device(MEASURED_CARD)
    batches = np.unique(np.geomspace(1, _MOST, 45).round()).astype(np.int64)
    shares = {
        costs.name: mfu(costs, shape, card, 1, batches) for costs in (*ground.costs(), load_costs("roofline"))
    }
    implied = [100 * implied_mfu(shape, card, 1, rate * GB) for rate in TABLE3[_MODEL, 1]]
    parts = [{"source": name, "batch": batches, "mfu_percent": 100 * share} for name, share in shares.items()]
    frame = stacked([*parts, {"source": _IMPLIED, "batch": BATCHES, "mfu_percent": implied}])
    how = f"modelled: {', '.join(ground.cost_sets)} on A100 (SXM, 80 GB)"
    rising = min(int(batches[np.argmax(shares[name])]) for name in ground.cost_sets)
    says = Section("section 3.1", f"{how}; measured up to {_MOST}")
    claim = says("batch up to which MFU rises", _MOST, rising, relation="at least")
    return Made(frame, [claim], f"{sentence(how)}.", _draw_fig3)


def _draw_fig3(frame: pd.DataFrame) -> Figure:
    """Lines for the cost sets, points for what Table 3 implies."""
    figure, axes = sheet(height=2.3)
    sources = [source for source in frame["source"].unique() if source != _IMPLIED]
    for colour, source in zip(CYCLE, sources, strict=False):
        mine = frame[frame["source"] == source]
        line, label = ("--", "roofline (ideal)") if source == "roofline" else ("-", source)
        axes.plot(mine["batch"], mine["mfu_percent"], color=colour, ls=line, label=label)
    printed = frame[frame["source"] == _IMPLIED]
    axes.plot(printed["batch"], printed["mfu_percent"], "o:", color=PUBLISHED, lw=1, label=_IMPLIED)
    powers_of_two(axes)
    axes.set(xlabel="batch", ylabel="MFU, %", ylim=(0, 105))
    axes.legend(loc="upper left")
    return figure


_REMARK = (
    "The formula is the paper's; what differs is the MFU. The printed bandwidths imply {implied:.0f} % at "
    "this batch, measured kernels of vLLM and Vidur come to {low:.0f} to {high:.0f} %: v1's model part "
    "was slower."
)
_TABLE3_COLUMNS = (
    *("model", "A100", "batch", "published\nGB/s", "ours, low\nGB/s", "ours, high\nGB/s"),
    *("implied\nMFU, %", "MFU, low\n%", "MFU, high\n%"),
)


def table3(ground: Ground) -> Made:
    """The paper's formula with the MFU of both cost sets, and the MFU that the printed numbers imply."""
    card = device(MEASURED_CARD)
    how = f"modelled: MFU of {ground.sets} on A100 in the paper's formula"
    says = Section("table 3", how)
    rows, claims = [], []
    for (name, count), published in TABLE3.items():
        shape = model(name)
        shares = [mfu(costs, shape, card, count, np.array(BATCHES)) for costs in ground.costs()]
        lows, highs = np.min(shares, axis=0), np.max(shares, axis=0)
        for batch, printed, *mine in zip(BATCHES, published, lows, highs, strict=True):
            ends = [float(least_bandwidth(shape, card, count, float(end))) / GB for end in mine]
            implied = 100 * implied_mfu(shape, card, count, printed * GB)
            low, high = (100 * float(end) for end in mine)
            rows.append((name, count, batch, printed, *ends, implied, low, high))
            remark = _REMARK.format(implied=implied, low=low, high=high)
            what = f"{name} on {count} A100, batch {batch}"
            claims.append(says(what, printed, ends, "GB/s", remark=remark))
    frame = pd.DataFrame(rows, columns=_TABLE3_COLUMNS)
    claims.append(
        says(
            "no more is needed, for batches up to 1024",
            20.0,
            float(frame["ours, high\nGB/s"].max()),
            "GB/s",
            "at most",
            where="section 4.2",
            remark=f"With the MFU of measured kernels these need more: {_above(frame, 20.0)}. The rows are "
            "of all devices together, and each A100 with a 200 Gbit/s NIC of its own has 25 GB/s.",
        )
    )
    words = "all devices of a row together. Implied MFU: what the published value stands for."
    return Made(frame, claims, f"{sentence(how)}; {words}")


def _above(frame: pd.DataFrame, limit: float) -> str:
    """From which batch on a model's upper end is above the limit."""
    first = frame[frame["ours, high\nGB/s"] > limit].groupby("model", sort=False)["batch"].min()
    return ", ".join(f"{name} from batch {batch} on" for name, batch in first.items())


_DEGREES = (1, 2, 4)
# The paper's batch is not in its text.
_DEGREE_BATCHES = (1, 16, 64, 128, 256, 512)
_SPEED_UP = 1.41


def fig5(ground: Ground) -> Made:
    """One RTX 4080's time over that of several, by batch."""
    shape, card = model("llama-7b"), device("rtx-4080")
    rows = []
    for costs in ground.costs():
        for batch in _DEGREE_BATCHES:
            alone = float(costs.model_step_seconds(shape, card, 1, batch))
            for degree in _DEGREES:
                seconds = float(costs.model_step_seconds(shape, card, degree, batch))
                rows.append((costs.name, batch, degree, 1000 * seconds, alone / seconds))
    frame = pd.DataFrame(rows, columns=["costs", "batch", "devices", "step_ms", "speed_up"])
    how = (
        f"modelled: {ground.sets}, A100's efficiencies on the RTX 4080's data sheet "
        "(no measurement of it), all-reduce over PCIe 4.0"
    )
    says = Section("section 3.2", how)
    share = 100 * card.flops_for("bf16") / device("a100-80g").flops_for("bf16")
    claims = (
        says("peak rate of an RTX 4080 over an A100's", 31.2, share, "%", how="computed: data sheets"),
        says(
            f"speed-up by four devices, batches {_DEGREE_BATCHES[0]} to {_DEGREE_BATCHES[-1]}",
            _SPEED_UP,
            frame[frame["devices"] == 4]["speed_up"],
            "times",
            remark="The paper does not say at which batch. Over our batches the speed-up falls from the "
            "upper to the lower end as all-reduce over PCIe, with an A100's share of the link, takes "
            "over; what that share is on these cards, which cannot reach each other's memory, is not "
            "known.",
        ),
    )
    return Made(frame, claims, f"{sentence(how)}.", _draw_fig5)


def _draw_fig5(frame: pd.DataFrame) -> Figure:
    """Groups of bars by batch; lines span the cost sets."""
    figure, axes = sheet(height=2.7)
    set_bars(axes, frame, "batch", "speed_up", hue="devices", palette=list(CYCLE[: len(_DEGREES)]))
    published_line(axes, _SPEED_UP, f"published, four devices: {_SPEED_UP}")
    axes.set(xlabel="batch", ylabel="speed-up")
    handles, labels = axes.get_legend_handles_labels()
    words = {"1": "1 device", "2": "2 devices", "4": "4 devices"}
    labels = [words.get(label, label) for label in labels]
    figure.legend(handles, labels, loc="outside upper left", ncols=2)
    return figure
