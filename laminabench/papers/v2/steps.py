"""Single decode steps of v2's Lamina: one batch of requests of one length, without pipelining.

Figure 12 shows what a token's time is spent on, figure 14 what sending Q early takes off it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.network import parse_network
from laminabench.papers.context import Context
from laminabench.papers.paper import Result
from laminabench.papers.replays import ends, one_batch
from laminabench.systems.modelled.lamina import NETWORK, build, default_deployment
from laminabench.systems.modelled.setup import Setup

MODELS = ("llama-33b", "llama-65b", "llama3-70b")
CONTEXTS = (4096, 8192)


class Step(NamedTuple):
    """A step of one batch; parts are as if each were alone, so they can add up to more than the TBT."""

    costs: str
    model: str
    deployment: str
    context: int
    batch: int
    tbt_ms: float
    model_ms: float
    attention_ms: float
    network_ms: float
    host_ms: float


def serial(model_name: str, costs: CostSet) -> Setup:
    """Return Lamina with one batch on Table 5's devices."""
    shape = model(model_name)
    return Setup(shape, parse_deployment(default_deployment(shape)), costs, parse_network(NETWORK), batches=1)


def most_requests(setup: Setup, length: int) -> int:
    """Return how many requests of this length fit."""
    return build(replace(setup, max_num_seqs=1)).spec.tokens_per_pool // length


def step(setup: Setup, length: int, batch: int) -> Step:
    """Simulate a batch that begins and ends together; times are means of its iterations."""
    outcome, times = one_batch("lamina", setup, length, batch)
    assert set(outcome.iterations["size"]) == {batch}, "a batch that does not fit is no batch"
    return Step(setup.costs.name, setup.model.name, str(setup.deployment), length, batch, *times.values())


def sizes(most: int) -> list[int]:
    """Return batches to look at, four for each doubling, and what memory holds."""
    fourths = {part << place for part in (4, 5, 6, 7) for place in range(most.bit_length())}
    return sorted({batch for batch in {1, 2, 3} | fourths if batch < most} | {most})


def fig12(context: Context) -> Result:
    """Compute every model at both contexts with both cost sets, batches until memory is full."""
    steps = []
    for costs in context.costs():
        for name in MODELS:
            setup = serial(name, costs)
            for length in CONTEXTS:
                steps += [step(setup, length, batch) for batch in sizes(most_requests(setup, length))]
    frame = pd.DataFrame(steps, columns=Step._fields)
    case = ["costs", "model", "context"]
    cases = frame.groupby(case)["batch"]
    parts = frame["model_ms"] + frame["attention_ms"] + frame["network_ms"]
    smallest, largest = (frame.loc[rows].set_index(case) for rows in (cases.idxmin(), cases.idxmax()))
    layers = frame["model"].map({name: model(name).layers for name in MODELS})
    values = {
        "share": ends(100 * (frame["model_ms"] / parts)[frame["batch"] == 1]),
        "growth": {
            part: ends(largest[f"{part}_ms"] / smallest[f"{part}_ms"])
            for part in ("model", "attention", "network")
        },
        "hidden": ends(100 * (1 - (frame["tbt_ms"] - frame["host_ms"]) / parts)),
        "tbt_ms": ends(frame["tbt_ms"]),
        "trips": ends(1000 * layers / frame["tbt_ms"]),
    }
    return Result(frame, values)


OVERLAP_CONTEXT = 4096
# What the paper calls a speed-up, and what a reduction of latency.
_SAVED = {"llama-65b": "speed_up_percent", "llama3-70b": "reduction_percent"}


def fig14(context: Context) -> Result:
    """Compute every batch with overlapping (Q sent early) and without, with both cost sets."""
    rows = []
    for costs in context.costs():
        for name in _SAVED:
            setup = serial(name, costs)
            for batch in sizes(most_requests(setup, OVERLAP_CONTEXT)):
                on, off = _tbt_ms(setup, batch)
                percents = 100 * (off / on - 1), 100 * (1 - on / off)
                rows.append((costs.name, name, str(setup.deployment), batch, on, off, *percents))
    columns = ["costs", "model", "deployment", "batch", "enabled_ms", "disabled_ms", *_SAVED.values()]
    frame = pd.DataFrame(rows, columns=columns)
    saved = pd.concat(
        frame[frame["model"] == name].assign(percent=frame[column]) for name, column in _SAVED.items()
    )
    best = saved.groupby(["model", "costs"])["percent"].max()
    of_65b = saved[saved["model"] == "llama-65b"]
    by_costs = of_65b.groupby("costs")
    last = of_65b.loc[by_costs["batch"].idxmax()]
    published = context.published("fig14")
    kv = {name: model(name).kv_bytes_per_token for name in _SAVED}
    values = {
        "best": {name: best[name] for name in _SAVED},
        "best_batch": of_65b.loc[by_costs["percent"].idxmax(), "batch"],
        "last": ends(last["percent"]),
        "last_batch": last["batch"].max(),
        "kv_ratio": kv["llama-65b"] / kv["llama3-70b"],
        "saved_words": {"llama-65b": "speed-up", "llama3-70b": "latency reduction"},
        "top": {name: 1.25 * max(published[name], best[name].max()) for name in _SAVED},
        **_with_more_to_hide(context),
    }
    return Result(frame, values, {"saved": saved})


def _with_more_to_hide(context: Context) -> dict[str, list[float]]:
    """Compute LLaMA3-70B's best reductions with more of K and V, and with fewer NICs for their bytes."""
    shape, network = model("llama3-70b"), parse_network(NETWORK)
    half = replace(network, bandwidth_bytes_per_s=network.bandwidth_bytes_per_s / 2)
    usual = [serial("llama3-70b", costs) for costs in context.costs()]
    twice = [replace(setup, model=replace(shape, kv_heads=2 * shape.kv_heads)) for setup in usual]
    shared = [replace(setup, network=half) for setup in usual]
    return {
        "heads": sorted(map(_best_reduction, twice)),
        "one_nic": sorted(map(_best_reduction, shared)),
    }


def _best_reduction(setup: Setup) -> float:
    """Return the percentage that overlapping takes off the TBT, with the batch for which that is most."""
    pairs = (_tbt_ms(setup, batch) for batch in sizes(most_requests(setup, OVERLAP_CONTEXT)))
    return max(100 * (1 - on / off) for on, off in pairs)


def _tbt_ms(setup: Setup, batch: int) -> tuple[float, float]:
    """Return the TBT with overlapping and without."""
    on, off = (step(each, OVERLAP_CONTEXT, batch).tbt_ms for each in (setup, replace(setup, overlap=False)))
    return on, off
