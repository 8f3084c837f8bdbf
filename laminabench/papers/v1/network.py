"""v1's network: in a token's latency (figure 14), next to attention (15), and hidden behind it (16)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from laminabench.catalog.cost_terms import ACTIVATION_BYTES
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, device
from laminabench.catalog.network import load_networks
from laminabench.papers.context import Context
from laminabench.papers.paper import Result
from laminabench.papers.replays import ends, stacked
from laminabench.papers.v1.experiments import SHORTEST, overlap, overlapped
from laminabench.papers.v1.testbed import CARD, LAMINA, VLLM, derived, measured, over, points_frame, setup
from laminabench.systems.modelled.lamina_v1 import STREAM_CHUNKS


def fig14(context: Context) -> Result:
    """Compute what a token's latency is made of, without rotation, with every batch that fits."""
    frame = points_frame(context, (VLLM, LAMINA), (512, 4096), (1, 4, 16, 64))
    alone = frame[frame["batch"] == 1]
    slower = {
        name: ends(100 * (over(rows, "tbt_ms", LAMINA, VLLM) - 1))
        for name, rows in (("measured", measured(alone)), ("derived", derived(alone)))
    }
    # As the bars stand: batches of a model and context in order, the systems side by side.
    slow = derived(frame)
    places = slow.groupby(["model", "context"])["batch"].rank("dense") - 1
    aside = slow["system"].map({VLLM: -0.19, LAMINA: 0.19})
    return Result(frame, {"slower": slower}, {"derived": slow.assign(at=places + aside)})


_CONTEXT = 512  # not in the paper's text
_TRANSFERS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256])


def fig15(context: Context) -> Result:
    """Compute a layer's transfers on the networks that the paper measured, and a layer's attention."""
    shape, card = model("llama-13b"), device(CARD)
    vanilla, best = load_networks()["v1-vanilla"], load_networks()["v1-gdr"]
    sent = 4 * ACTIVATION_BYTES * shape.hidden * _TRANSFERS
    parts = [
        ("vanilla RDMA", "", vanilla.rtt_s + sent / vanilla.bandwidth_bytes_per_s),
        ("device-side polling", "", best.rtt_s + sent / vanilla.bandwidth_bytes_per_s),
        ("polling and GPUDirect", "", best.rtt_s + sent / best.bandwidth_bytes_per_s),
    ]
    alone = []
    for costs in context.costs():
        seconds = costs.attention_seconds(shape, card, _TRANSFERS * _CONTEXT, _TRANSFERS) / shape.layers
        parts.append(("attention", costs.name, seconds))
        alone.append(float(seconds[0]))
    frame = stacked(
        {"what": what, "costs": costs, "batch": _TRANSFERS, "us": 1e6 * seconds}
        for what, costs, seconds in parts
    )
    values = {
        "gb_per_s": best.bandwidth_bytes_per_s / GB,
        "of_link": 100 * best.bandwidth_bytes_per_s / best.line_rate_bytes_per_s,
        "share": [100 * vanilla.rtt_s / (vanilla.rtt_s + seconds) for seconds in alone],
    }
    return Result(frame, values)


_BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224)


def fig16(context: Context) -> Result:
    """Compute a step with and without streaming attention in mini-batches, while they are sent, by batch."""
    rows = [
        (costs.name, *overlapped(setup(LAMINA, "llama-13b", costs), _CONTEXT, batch, STREAM_CHUNKS))
        for costs in context.costs()
        for batch in (*_BATCHES, None)
    ]
    columns = ["costs", "batch", "tbt_ms", "streamed_tbt_ms", "network_ms", "masked_percent", "saved_percent"]
    frame = pd.DataFrame(rows, columns=columns)
    best = frame.groupby("costs")[["masked_percent", "saved_percent"]].max()
    variants = overlap(context.costs(), (SHORTEST, _CONTEXT), (STREAM_CHUNKS, 2 * STREAM_CHUNKS))
    values = {"chunks": STREAM_CHUNKS, "tried": variants}
    return Result(frame, values | {kind: best[f"{kind}_percent"] for kind in ("masked", "saved")})
