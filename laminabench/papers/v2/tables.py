"""The current paper's tables: devices, notation, models, traces and deployments, and the catalogue's."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, Device, device
from laminabench.catalog.layout import NODE_DEVICES
from laminabench.papers.context import TRACES, Context
from laminabench.papers.paper import Result
from laminabench.papers.v2.analysis import BATCHES, NETWORK_CONTEXTS
from laminabench.systems.modelled.lamina import replica_count
from laminabench.systems.registry import system

DEVICES = ("h100", "h20", "tpu-v6e")


def _usd(each: Device) -> float:
    assert each.price_usd_per_hour is not None
    return each.price_usd_per_hour


_TABLE_1: dict[tuple[str, str], Callable[[Device], float | None]] = {
    ("BF16 rate", "TFLOP/s"): lambda each: each.flops_for("bf16") / 1e12,
    ("memory", "GB"): lambda each: each.memory_bytes / GB,
    ("memory bandwidth", "TB/s"): lambda each: each.bandwidth_bytes_per_s / 1e12,
    ("power rating", "W"): lambda each: each.power_w,
    ("inter-chip bandwidth", "GB/s"): lambda each: each.interchip_bytes_per_s / GB,
    ("network bandwidth", "Gbit/s"): lambda each: each.nic_bytes_per_s * 8 / GB,
    ("price", "$/h"): _usd,
}


def table1(context: Context) -> Result:
    """Return the catalogue's values, and what each buys for a dollar."""
    devices = {name: device(name) for name in DEVICES}
    h100, h20 = devices["h100"], devices["h20"]
    rates = {name: each.flops_for("bf16") / 1e12 / _usd(each) for name, each in devices.items()}
    bandwidths = {name: each.bandwidth_bytes_per_s / GB / _usd(each) for name, each in devices.items()}
    rows = [
        *((*words, *map(value, devices.values())) for words, value in _TABLE_1.items()),
        ("BF16 rate for its price", "TFLOP/s per $/h", *rates.values()),
        ("bandwidth for its price", "GB/s per $/h", *bandwidths.values()),
    ]
    assert h20.power_w is not None
    assert h100.power_w is not None
    both = [
        name
        for name in DEVICES[:0:-1]
        if rates[name] > rates["h100"] and bandwidths[name] > bandwidths["h100"]
    ]
    values = {
        "cells": {row[0]: dict(zip(DEVICES, row[2:], strict=True)) for row in rows},
        "rate_percent": 100 * h20.flops_for("bf16") / h100.flops_for("bf16"),
        "network_percent": 100 * h100.nic_bytes_per_s / h100.interchip_bytes_per_s,
        "rate_per_usd": rates["tpu-v6e"] / rates["h100"],
        "bandwidth_per_usd": bandwidths["h20"] / bandwidths["h100"],
        "bandwidth_per_w": h20.bandwidth_bytes_per_s
        / h20.power_w
        / (h100.bandwidth_bytes_per_s / h100.power_w),
        "both": f"{', '.join(both)} has" if both else "neither has",
    }
    return Result(pd.DataFrame(rows, columns=["", "unit", *DEVICES]), values)


def table2(context: Context) -> Result:
    """Return the letters of the paper's formulas, with its values and those of the catalogue."""
    shape = model("llama3-70b")
    rows = [
        ("N", "parameters of the model", 70e9, shape.parameters),
        ("d", "hidden dimension", 8192, shape.hidden),
        ("L", "layers", 80, shape.layers),
        ("G", "group size of GQA", 8, shape.group),
        ("e", "bytes per element", 2, shape.dtype_bytes),
    ]
    batches, lengths = (f"{each[0]:,} to {each[-1]:,}" for each in (BATCHES, NETWORK_CONTEXTS))
    texts = [
        *((letter, words, f"{printed:,.0f}", f"{ours:,.0f}") for letter, words, printed, ours in rows),
        ("B", "batch size", "1 to 1,024", f"{batches} in figure 2"),
        ("l", "sequence length", "128 to 32,768", f"{lengths} in figure 4"),
    ]
    frame = pd.DataFrame(texts, columns=["letter", "stands for", "published", "ours"])
    values = {"ours": {letter: float(ours) for letter, *_, ours in rows}, "batches": BATCHES}
    return Result(frame, values)


def table3(context: Context) -> Result:
    """Return the models: the paper's sizes and those that follow from the shapes."""
    published = context.published("table3")
    rows, ours = [], {}
    for name in ("llama-33b", "llama-65b", "llama3-70b"):
        shape = model(name)
        sizes = {"L": shape.layers, "d": shape.hidden, "G": shape.group}
        counted = shape.table3_bytes / GB
        ours[name] = {"GB": counted} | {letter: float(size) for letter, size in sizes.items()}
        rows.append((name, published[name], counted, shape.weight_bytes / GB, *sizes.values()))
    columns = ["model", "published GB", "ours, counted\nas there, GB", "with all\ntables, GB"]
    columns += ["layers\nL", "hidden\nd", "group\nG"]
    return Result(pd.DataFrame(rows, columns=columns), {"ours": ours})


_COUNTED = {"requests": "requests", "mean prompt tokens": "prompt", "mean output tokens": "output"}


def table4(context: Context) -> Result:
    """Return the traces at hand, and what the paper counts in them."""
    published = context.published("table4")
    rows = []
    ours: dict[str, dict[str, float]] = {}
    kinds = {}
    for name in TRACES:
        trace = context.trace(name)
        real = trace.meta.source == "file"
        counts = (len(trace), float(trace.prompt_tokens.mean()), float(trace.output_tokens.mean()))
        ours[name] = dict(zip(_COUNTED, map(float, counts), strict=True))
        # A profile that was never fitted to a file has this table's means.
        kinds[name] = "real" if real else "entered" if name == "kimi-ta" else "fitted"
        pairs = ((published[f"{name}, {what}"], count) for what, count in zip(_COUNTED, counts, strict=True))
        rows.append((name, *(value for pair in pairs for value in pair), "real" if real else "profile"))
    columns = [f"{words}\n{source}" for words in _COUNTED.values() for source in ("published", "ours")]
    frame = pd.DataFrame(rows, columns=["trace", *columns, "ours\nis"])
    frame["requests\npublished"] = frame["requests\npublished"].astype(int)
    remarks = {name: f"Of its first {len(context.trace(name)):,} requests only." for name in TRACES}
    values = {
        "ours": ours,
        "kinds": kinds,
        "source": context.source_of(*TRACES),
        "remarks": remarks if context.draft else dict.fromkeys(TRACES, ""),
    }
    return Result(frame, values)


def table5(context: Context) -> Result:
    """Return the catalogue's prices of the deployments of about equal cost."""
    published = context.published("table5")
    rows = []
    usd: dict[str, dict[str, float | None]] = {}
    for name in ("llama-33b", "llama-65b", "llama3-70b"):
        for side in ("lamina", "vllm"):
            deployment = parse_deployment(system(side).default_deployment(model(name)))
            usd.setdefault(name, {})[side] = deployment.usd_per_hour
            rows.append((name, side, str(deployment), published[f"{name}, {side}"], deployment.usd_per_hour))
    frame = pd.DataFrame(rows, columns=["model", "system", "deployment", "published $/h", "ours $/h"])
    # What a slice and its attention take one after the other, in times of a slice.
    taken = {batches: 1 + 1 / replica_count("rotational", batches) for batches in (2, 3, 4, 5)}
    values = {
        "usd": usd,
        "node": float(NODE_DEVICES),
        "nic": device("h100").nic_bytes_per_s * 8 / GB,
        "bits": 8.0 * model("llama3-70b").dtype_bytes,
        "alone": float(max(count for count in range(2, 9) if replica_count("rotational", count) == 1)),
        "rotated": {batches: times / taken[2] for batches, times in taken.items()},
    }
    return Result(frame, values)
