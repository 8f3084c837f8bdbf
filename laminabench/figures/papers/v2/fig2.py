"""Figure 2: time and MFU of everything but attention, by batch and tensor parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import Device, device
from laminabench.catalog.models import ModelShape
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band, ends
from laminabench.figures.style import CYCLE, INK, PAGE, foot, no_legend, published_line, sentence, sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Time and MFU of the non-attention operators of LLaMA3-70B on H100"
# Table 2's range.
BATCHES = (1, *range(8, 1025, 8))
# One H100 does not hold the weights.
DEGREES = (2, 4, 8)
ROOFLINE = "roofline"
_SMALL, _PERCENT = 100, 20.0
_COLOURS = {f"{degree} H100": colour for degree, colour in zip(DEGREES, CYCLE, strict=False)}


def make(ground: Ground) -> Made:
    """A step without attention with both cost sets, and by the paper's roofline."""
    import pandas as pd

    shape, card = model("llama3-70b"), device("h100")
    batches = np.array(BATCHES)
    frames = []
    for degree in DEGREES:
        times = {
            costs.name: costs.model_step_seconds(shape, card, degree, batches) for costs in ground.costs()
        }
        times[ROOFLINE] = roofline(shape, card, degree, batches)
        for name, seconds in times.items():
            columns = {"costs": name, "devices": f"{degree} H100", "batch": batches, "ms": 1000 * seconds}
            mfu = 100 * flops(shape, batches) / (seconds * degree * card.flops_for(shape.dtype))
            frames.append(pd.DataFrame({**columns, "mfu_percent": mfu}))
    frame = pd.concat(frames, ignore_index=True)
    how = f"modelled: {ground.sets}; GEMMs, element-wise operations, all-reduce and LM head"
    claims = tuple(_claim(frame, devices, how) for devices in _COLOURS)
    return Made(
        frame,
        claims,
        f"{sentence(how)}. Bands span the sets; dashed: the paper's roofline, "
        "2NB operations and eN + 2eBd bytes at the data sheet's rates.",
    )


def flops(shape: ModelShape, batches: NDArray[np.int64]) -> NDArray[np.float64]:
    """2 N B, of the matrices that are multiplied with: looking up an embedding is no operation."""
    count = shape.weights()
    return np.asarray(2 * (count.matrices + count.lm_head) * batches, np.float64)


def roofline(shape: ModelShape, card: Device, degree: int, batches: NDArray[np.int64]) -> NDArray[np.float64]:
    """Section 2.2.1: the longer of 2 N B operations and e N + 2 e B d bytes, on so many devices."""
    count, element = shape.weights(), shape.dtype_bytes
    moved = element * (count.matrices + count.lm_head) + 2 * element * batches * shape.hidden
    longer: NDArray[np.float64] = np.maximum(
        flops(shape, batches) / (degree * card.flops_for(shape.dtype)),
        moved / (degree * card.bandwidth_bytes_per_s),
    )
    return longer


def _claim(frame: pd.DataFrame, devices: str, how: str) -> Claim:
    modelled = frame[(frame["costs"] != ROOFLINE) & (frame["devices"] == devices)]
    below = modelled[modelled["batch"] < _SMALL]
    largest = int(below["batch"].max())
    keeping = modelled.groupby("batch")["mfu_percent"].max()
    until = int(keeping.index[keeping <= _PERCENT].max())
    return Claim(
        f"MFU below a batch of {_SMALL}, on {devices}; ours at {largest}",
        "section 2.2.1",
        _PERCENT,
        ends(below[below["batch"] == largest]["mfu_percent"]),
        how,
        "%",
        "at most",
        ""
        if until >= largest
        else f"With the faster set it is below {_PERCENT:.0f} % up to a batch of {until}.",
    )


def draw(made: Made) -> Figure:
    """Time on the left, MFU on the right."""
    figure, (times, shares) = sheet(1, 2, width=PAGE, height=2.7)
    for axes, column in ((times, "ms"), (shares, "mfu_percent")):
        _lines(axes, made.frame, column)
    times.set(ylabel="ms an iteration", ylim=(0, None))
    published_line(shares, _PERCENT, f"published: below {_PERCENT:.0f} % up to a batch of {_SMALL}")
    published_line(shares, _SMALL, "_", vertical=True)
    shares.set(ylabel="MFU, %", ylim=(0, 100))
    figure.legend(*shares.get_legend_handles_labels(), loc="outside upper left", ncols=5)
    foot(figure, made.how)
    return figure


def _lines(axes: Axes, frame: pd.DataFrame, column: str) -> None:
    modelled = frame[frame["costs"] != ROOFLINE]
    band(axes, modelled, "batch", column, hue="devices", palette=_COLOURS)
    no_legend(axes)
    for devices, colour in _COLOURS.items():
        ideal = frame[(frame["costs"] == ROOFLINE) & (frame["devices"] == devices)]
        # The MFU of the ideal is the same for all.
        axes.plot(ideal["batch"], ideal[column], color=colour if column == "ms" else INK, ls="--", lw=1)
    axes.set(xlabel="batch", xlim=(0, BATCHES[-1]))
