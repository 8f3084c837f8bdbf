"""v1's two parts of a decode step, computation and attention: their time, rates, and the network between.

Figure 3 is computation's rate by batch, table 3 the network that it asks for, figure 5 how little several
small cards speed it up; figure 4 is attention's share by context, and figure 6 the bandwidth that it uses.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.cost_keys import AllReduceKey
from laminabench.catalog.cost_terms import ACTIVATION_BYTES, AllReduceCost, Origin
from laminabench.catalog.costs import CostSet
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, Device, device
from laminabench.catalog.models import ModelShape
from laminabench.catalog.step import model_step_seconds
from laminabench.papers.claims import span
from laminabench.papers.context import Context
from laminabench.papers.entries import entry_of
from laminabench.papers.paper import Result
from laminabench.papers.replays import stacked

# The A100 that the cost sets were measured on.
MEASURED_CARD = "a100-80g-sxm"
# v1 Table 3, GB/s: by model and its number of A100, for these batches.
BATCHES = (128, 256, 512, 1024)
_PRINTED = entry_of("v1-table3").published
TABLE3 = {
    (name, count): tuple(_PRINTED[f"{name}, {batch}"] for batch in BATCHES)
    for name, count in (("llama-13b", 1), ("llama-33b", 2), ("llama-65b", 4))
}


def parameters(shape: ModelShape) -> float:
    """Return N as the papers count it: the layers and one vocabulary table."""
    return shape.table3_bytes / shape.dtype_bytes


def mfu(
    costs: CostSet, shape: ModelShape, card: Device, tp: int, batches: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return 2 N B over the step's time and the peak rate of all devices."""
    seconds = model_step_seconds(costs, shape, card, tp, batches)
    share: NDArray[np.float64] = (
        2 * parameters(shape) * batches / (seconds * tp * card.flops_for(shape.dtype))
    )
    return share


def least_bandwidth(
    shape: ModelShape, card: Device, count: int, share: float | NDArray[np.float64]
) -> float | NDArray[np.float64]:
    """Return 4 e d B L bytes in the time of 2 N B operations (section 4.2); the batch cancels out.

    The rate is of all devices together: taken for one, Table 3 would imply more than the peak.
    """
    sent = 4 * ACTIVATION_BYTES * shape.hidden * shape.layers
    return sent * share * count * card.flops_for(shape.dtype) / (2 * parameters(shape))


def implied_mfu(shape: ModelShape, card: Device, count: int, bytes_per_s: float) -> float:
    """Return the MFU behind a published bandwidth: `least_bandwidth` turned around."""
    return float(bytes_per_s / least_bandwidth(shape, card, count, 1.0))


_MODEL = "llama-13b"
_MOST = 2048  # as far as the cost sets were measured


def fig3(context: Context) -> Result:
    """Compute MFU by batch of every cost set and of the ideal, and what Table 3 implies."""
    shape, card = model(_MODEL), device(MEASURED_CARD)
    batches = np.unique(np.geomspace(1, _MOST, 45).round()).astype(np.int64)
    sets = (*context.costs(), load_costs("roofline"))
    shares = {costs.name: mfu(costs, shape, card, 1, batches) for costs in sets}
    implied = [100 * implied_mfu(shape, card, 1, rate * GB) for rate in TABLE3[_MODEL, 1]]
    parts = [{"source": name, "batch": batches, "mfu_percent": 100 * share} for name, share in shares.items()]
    frame = stacked([*parts, {"source": "implied by v1 Table 3", "batch": BATCHES, "mfu_percent": implied}])
    rising = min(int(batches[np.argmax(shares[name])]) for name in context.cost_sets)
    return Result(frame, {"names": ", ".join(context.cost_sets), "rising": rising})


# GB/s each way of PCIe 4.0 x16: A100s that no NVLink joins.
_PCIE = 32.0
_TABLE3_COLUMNS = (
    *("model", "A100", "batch", "published\nGB/s", "ours, low\nGB/s", "ours, high\nGB/s"),
    *("implied\nMFU, %", "MFU, low\n%", "MFU, high\n%"),
)


def table3(context: Context) -> Result:
    """Compute the paper's formula with the MFU of both sets, and the MFU that the printed numbers imply."""
    card = device(MEASURED_CARD)
    rows = []
    cells: dict[str, dict[str, dict[str, object]]] = {}
    for (name, count), published in TABLE3.items():
        shape = model(name)
        shares = [mfu(costs, shape, card, count, np.array(BATCHES)) for costs in context.costs()]
        bounds = zip(np.min(shares, axis=0), np.max(shares, axis=0), strict=True)
        tested = _slowed(context.costs(), shape, card, count, published)
        for batch, printed, share_range, words in zip(BATCHES, published, bounds, tested, strict=True):
            rates = [float(least_bandwidth(shape, card, count, float(share))) / GB for share in share_range]
            implied = 100 * implied_mfu(shape, card, count, printed * GB)
            percents = [100 * float(share) for share in share_range]
            rows.append((name, count, batch, printed, *rates, implied, *percents))
            cell = {"rates": rates, "implied": implied, "mfu": percents, "tested": words}
            cells.setdefault(name, {})[str(batch)] = cell
    frame = pd.DataFrame(rows, columns=_TABLE3_COLUMNS)
    high = frame["ours, high\nGB/s"]
    first = frame[high > context.published("v1-table3")["limit"]].groupby("model", sort=False)["batch"].min()
    values = {
        "cells": {name: {int(batch): cell for batch, cell in row.items()} for name, row in cells.items()},
        "most": high.max(),
        "above": ", ".join(f"{name} from batch {batch} on" for name, batch in first.items()),
        "nic": 8 * (high / frame["A100"]).max(),
    }
    return Result(frame, values)


def _slowed(
    sets: list[CostSet], shape: ModelShape, card: Device, count: int, published: tuple[float, ...]
) -> list[str]:
    """Describe each batch of a row with a constant more in a step, and with all-reduce over PCIe too."""
    sent = 4 * ACTIVATION_BYTES * shape.hidden * shape.layers * np.array(BATCHES)
    first = sent[0] / (published[0] * GB)
    links = {"": card, " and all-reduce over PCIe 4.0": replace(card, interchip_bytes_per_s=_PCIE * GB)}
    texts: list[list[str]] = [[] for _ in BATCHES]
    for link, on in list(links.items())[: 1 + (count > 1)]:
        steps = [model_step_seconds(costs, shape, on, count, np.array(BATCHES)) for costs in sets]
        more = [float(first - step[0]) for step in steps]
        rates = [sent / (step + constant) / GB for step, constant in zip(steps, more, strict=True)]
        for i, words in enumerate(texts):
            words.append(
                f"with {span((1000 * each for each in more), '.0f')} ms more in every "
                f"step{link} {span((float(rate[i]) for rate in rates), '.1f')} GB/s"
            )
    return ["; ".join(words) for words in texts]


_DEGREES = (1, 2, 4)
# The paper's batch is not in its text.
_DEGREE_BATCHES = (1, 16, 64, 128, 256, 512)
_SMALL_CARD = "rtx-4080"
_HOST_GB_PER_S, _HOST_US = 8.4, 8.4


def fig5(context: Context) -> Result:
    """Compute one RTX 4080's time over that of several, by batch."""
    shape, card = model("llama-7b"), device(_SMALL_CARD)

    def speed_up(costs: CostSet, degree: int, batch: float | NDArray[np.int64]) -> NDArray[np.float64]:
        alone, several = (model_step_seconds(costs, shape, card, tp, batch) for tp in (1, degree))
        return np.asarray(alone / several)

    rows = []
    for costs in map(through_host, context.costs()):
        for batch in _DEGREE_BATCHES:
            for degree in _DEGREES:
                seconds = float(model_step_seconds(costs, shape, card, degree, batch))
                times = float(speed_up(costs, degree, batch))
                rows.append((costs.name, batch, degree, 1000 * seconds, times))
    frame = pd.DataFrame(rows, columns=["costs", "batch", "devices", "step_ms", "speed_up"])
    batches = np.arange(1, _DEGREE_BATCHES[-1] + 1)
    published = context.published("v1-fig5")["speed_up"]
    values = {
        "host_gb_per_s": _HOST_GB_PER_S,
        "host_us": _HOST_US,
        "share": 100 * card.flops_for("bf16") / device("a100-80g").flops_for("bf16"),
        "speed_up": frame[frame["devices"] == 4]["speed_up"],
        # Where the published speed-up comes out, and the least that there is without host memory.
        "last_batch": [
            int(batches[speed_up(through_host(costs), 4, batches) >= published].max())
            for costs in context.costs()
        ],
        "least": min(float(speed_up(costs, 4, batches).min()) for costs in context.costs()),
    }
    counts = frame["devices"].map(lambda count: f"{count} device{'s' * (count > 1)}")
    return Result(frame, values, {"named": frame.assign(count=counts)})


def through_host(costs: CostSet) -> CostSet:
    """Return costs with the all-reduce of cards that cannot reach each other's memory.

    A ring has 2 (p - 1) steps.
    """
    origin = Origin(
        "assumed",
        "RTX 4090: p2pBandwidthLatencyTest without peer access (gist muellerzr/fbfabd0f, 16.8 GB/s both "
        "ways); NCCL with NCCL_P2P_DISABLE=1 over two (tinygrad/open-gpu-kernel-modules issue 45)",
    )
    rate = _HOST_GB_PER_S * GB / device(_SMALL_CARD).interchip_bytes_per_s
    name = costs.measured_as(device(_SMALL_CARD))
    terms = {
        AllReduceKey(name, degree): AllReduceCost((degree - 1) * _HOST_US * 1e-6, rate, origin)
        for degree in _DEGREES
        if degree > 1
    }
    return msgspec.structs.replace(costs, allreduce=terms)


_CONTEXT = 1500  # from where on the paper says it


def fig4(context: Context) -> Result:
    """Compute attention's time over that of a whole step, without host."""
    shape, card = model(_MODEL), device(MEASURED_CARD)
    contexts = np.arange(100, 4001, 100)
    parts = []
    for costs in context.costs():
        for batch in (128, 512):
            attention = costs.attention_seconds(shape, card, batch * contexts, batch)
            step = attention + model_step_seconds(costs, shape, card, 1, batch)
            columns = {"costs": costs.name, "batch": batch, "context": contexts}
            parts.append({**columns, "attention_percent": 100 * attention / step})
    frame = stacked(parts)
    # The shortest context with more than the paper's share for both batches and sets.
    least = frame.groupby("context")["attention_percent"].min()
    values = {
        "share": frame[frame["context"] == _CONTEXT]["attention_percent"],
        "all_above": int(least.index[least > context.published("v1-fig4")["share"]].min()),
    }
    return Result(frame, values)


_MBU_CONTEXTS = (512, 1024, 2048, 4096)
_MBU_DEVICES = (MEASURED_CARD, "h100", "rtx-3090")
_MBU_BATCHES = np.array([1, 2, 4, 8, 16, 32, 64])


def fig6(context: Context) -> Result:
    """Compute MBU and MFU of decode attention on three devices, one of them with borrowed efficiencies."""
    shape = model(_MODEL)
    parts = []
    for costs in context.costs():
        for name in _MBU_DEVICES:
            card = device(name)
            for length in _MBU_CONTEXTS:
                seconds = costs.attention_seconds(shape, card, _MBU_BATCHES * length, _MBU_BATCHES)
                read = _MBU_BATCHES * length * shape.kv_bytes_per_token
                # q times K and scores times V: two operations for each element of K and of V.
                operations = 2 * read / shape.dtype_bytes * shape.group
                columns = {"costs": costs.name, "device": name, "context": length, "batch": _MBU_BATCHES}
                shares = {
                    "mbu_percent": 100 * read / (seconds * card.bandwidth_bytes_per_s),
                    "mfu_percent": 100 * operations / (seconds * card.flops_for(shape.dtype)),
                }
                parts.append({**columns, **shares})
    frame = stacked(parts)
    best = frame.groupby("device")[["mbu_percent", "mfu_percent"]].max()
    values = {"mbu": best["mbu_percent"].to_dict(), "mfu": best["mfu_percent"][MEASURED_CARD]}
    return Result(frame, values)
