"""Figure 3: time and MBU of attention, by batch, until memory is full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band, ends
from laminabench.figures.style import (
    CYCLE,
    OVER_GRID,
    PAGE,
    foot,
    no_legend,
    published_line,
    sentence,
    sheet,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Time and MBU of the attention operators of LLaMA3-70B"
CONTEXTS = (4096, 8192)
DEVICES = ("h100", "h20")
_SMALL, _PERCENT, _FULL, _FULL_CONTEXT = 20, 70.0, 30, 8192
_COLOURS = dict(zip(DEVICES, CYCLE, strict=False))


def make(ground: Ground) -> Made:
    """All layers of attention on one device with both cost sets."""
    import pandas as pd

    shape = model("llama3-70b")
    frames = []
    for costs in ground.costs():
        for name in DEVICES:
            card = device(name)
            for context in CONTEXTS:
                batches = np.arange(1, int(fitting(name, context)) + 1)
                seconds = costs.attention_seconds(shape, card, batches * context, batches)
                read = batches * context * shape.kv_bytes_per_token
                mbu = 100 * read / (seconds * card.bandwidth_bytes_per_s)
                columns = {"costs": costs.name, "device": name, "context": context, "batch": batches}
                frames.append(pd.DataFrame({**columns, "ms": 1000 * seconds, "mbu_percent": mbu}))
    frame = pd.concat(frames, ignore_index=True)
    how = (
        f"modelled: {ground.sets}, which share their measurements of attention (on H100; "
        "H20 with H100's efficiencies is assumed)"
    )
    there = frame[frame["batch"] == _SMALL]
    claims = (
        *(
            Claim(
                f"MBU with a batch of {_SMALL} on {name}, contexts of {CONTEXTS[0]} and {CONTEXTS[1]}",
                "section 2.2.2",
                _PERCENT,
                ends(there[there["device"] == name]["mbu_percent"]),
                how,
                "%",
                "at least",
            )
            for name in DEVICES
        ),
        Claim(
            f"requests of {_FULL_CONTEXT} tokens whose KV fills an H100",
            "section 2.2.2",
            float(_FULL),
            fitting("h100", _FULL_CONTEXT),
            "computed: 80 GB over the KV bytes of a request",
        ),
    )
    return Made(
        frame, claims, f"{sentence(how)}; one device with all heads. Lines end where its memory is full."
    )


def fitting(device_name: str, context: int) -> float:
    """Requests of this length whose KV is as large as the whole memory, weights or not."""
    return device(device_name).memory_bytes / (context * model("llama3-70b").kv_bytes_per_token)


def draw(made: Made) -> Figure:
    """Time on the left, MBU on the right."""
    figure, (times, shares) = sheet(1, 2, width=PAGE, height=3.0)
    for axes, column in ((times, "ms"), (shares, "mbu_percent")):
        _lines(axes, made.frame, column)
    times.set(ylabel="ms an iteration", ylim=(0, None))
    published_line(times, _FULL, "_", vertical=True)
    times.annotate(
        f"published: {_FULL} requests of\n{_FULL_CONTEXT} fill an H100",
        (_FULL, 0),
        xycoords=("data", "axes fraction"),
        xytext=(3, 3),
        textcoords="offset points",
        va="bottom",
        fontsize=6,
        bbox=OVER_GRID,
    )
    published_line(shares, _PERCENT, f"published: above {_PERCENT:.0f} % from a batch of {_SMALL} on")
    published_line(shares, _SMALL, "_", vertical=True)
    shares.set(ylabel="MBU, %", ylim=(0, 100))
    figure.legend(*shares.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    foot(figure, made.how)
    return figure


def _lines(axes: Axes, frame: pd.DataFrame, column: str) -> None:
    shown = frame.assign(line=frame["device"] + ", " + frame["context"].astype(str) + " tokens")
    names = list(dict.fromkeys(shown["line"]))
    palette = {name: _COLOURS[name.split(",")[0]] for name in names}
    dashes = {name: (2, 1) if str(CONTEXTS[1]) in name else "" for name in names}
    band(axes, shown, "batch", column, hue="line", style="line", palette=palette, dashes=dashes)
    no_legend(axes)
    axes.set(xlabel="batch", xlim=(0, None))
