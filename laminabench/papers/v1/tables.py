"""v1's tables of the catalogue: what memory costs (table 1) and the models that it measures (table 4)."""

from __future__ import annotations

import pandas as pd

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, device
from laminabench.papers.context import Context
from laminabench.papers.paper import Result

_ENTERPRISE = ("a100-80g", "h100")
_CONSUMER = ("rtx-3090", "rx-7900-xtx", "arc-a770")
_PER_UNIT = ("$/GB", "$/(GB/s)")


def table1(context: Context) -> Result:
    """Return the catalogue's devices, whose prices and memory are the paper's."""
    rows = []
    for name in (*_ENTERPRISE, *_CONSUMER):
        each = device(name)
        assert each.purchase is not None
        memory, bandwidth = each.memory_bytes / GB, each.bandwidth_bytes_per_s / GB
        usd = each.purchase.usd
        rows.append((name, usd, memory, bandwidth, usd / memory, usd / bandwidth))
    columns = ("accelerator", "price, $", "memory, GB", "bandwidth, GB/s", *_PER_UNIT)
    frame = pd.DataFrame(rows, columns=columns)
    ours = {str(name): cells.to_dict() for name, cells in frame.set_index("accelerator").iterrows()}
    published = context.published("v1-table1")
    for column in _PER_UNIT:
        frame[f"published {column}"] = [published[f"{column} of {name}"] for name in ours]
    # Of each enterprise and consumer card: what both memory and bandwidth are at least cheaper by.
    alphas = [
        min(ours[dear][unit] / ours[cheap][unit] for unit in _PER_UNIT)
        for dear in _ENTERPRISE
        for cheap in _CONSUMER
    ]
    return Result(frame, {"ours": ours, "alphas": alphas, "least": min(alphas)})


def table4(context: Context) -> Result:
    """Return the models: GB of weights, layers and hidden size, and the catalogue's shapes."""
    published = context.published("v1-table4")
    shapes = {name: model(name) for name in ("llama-13b", "llama-33b")}
    rows = [
        (name, published[name], shape.table3_bytes / GB, shape.layers, shape.hidden)
        for name, shape in shapes.items()
    ]
    first, card = shapes["llama-13b"], device("a100-40g")
    values = {
        "ours": {
            name: {"weights": gb, "layers": float(layers), "hidden": float(hidden)}
            for name, _, gb, layers, hidden in rows
        },
        "billions": first.parameters / 1e9,
        "hidden": first.hidden,
        "layers": first.layers,
        "element": first.dtype_bytes,
        "memory": card.memory_bytes / GB,
        "nic": 8 * card.nic_bytes_per_s / GB,
    }
    frame = pd.DataFrame(rows, columns=["model", "published\nGB", "ours\nGB", "layers", "hidden\nsize"])
    return Result(frame, values)
