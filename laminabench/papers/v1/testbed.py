"""v1's testbed (section 6): A100 of 40 GB in both roles, and full batches of requests of one length."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import Deployment, Workers
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, device
from laminabench.catalog.network import parse_network
from laminabench.papers.context import Context
from laminabench.papers.replays import STEPS, one_batch
from laminabench.systems.modelled.lamina_v1 import NETWORK
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.registry import system

CARD = "a100-40g"
# Computation and memory devices. LLaMA-13B's are in section 6.3; the paper does not say LLaMA-33B's: its
# weights need two cards, and eight memory devices are assumed.
DOPS = {"llama-13b": (1, 3), "llama-33b": (2, 8)}
# The card has 40 GiB, which are more bytes than the data sheet's and the catalogue's 40 GB; systems use 90 %
# of them.
MEMORY_SHARE = 0.9 * 40 * 2**30 / (40 * GB)
VLLM, LAMINA, ROTATIONAL = "vLLM", "Lamina", "Lamina, rotational"
WAYS = (VLLM, LAMINA, ROTATIONAL)
# A set derived from v1's Table 3, not a measured one: bands never span it.
DERIVED = "v1-table3"
# The columns of a case; to these comes the system.
CASE = ["costs", "model", "context"]


class Point(NamedTuple):
    """One batch of requests of one length, decoded together; times are of a step."""

    model: str
    system: str
    costs: str
    context: int
    batch: int
    tokens_per_s: float
    tbt_ms: float
    model_ms: float
    attention_ms: float
    network_ms: float
    host_ms: float


def longest_request(way: str, chosen: Setup) -> int:
    """Return the tokens, prompt and answer, of a request that just fits when it is alone."""
    spec = system(system_name(way)).build(replace(chosen, max_num_seqs=1)).spec
    return spec.tokens_per_pool // spec.block_tokens * spec.block_tokens


def deployment(way: str, model_name: str, memory_devices: int | None = None) -> Deployment:
    """Return the testbed's cards in their roles, with as many memory devices as `DOPS` says by default."""
    computation, usual = DOPS[model_name]
    card = device(CARD)
    memory = None if way == VLLM else Workers(card, memory_devices or usual)
    return Deployment(Workers(card, computation), memory)


def setup(way: str, model_name: str, costs: CostSet, memory_devices: int | None = None) -> Setup:
    """Return one of `WAYS` to serve a model on the testbed."""
    return Setup(
        model(model_name),
        deployment(way, model_name, memory_devices),
        costs,
        parse_network(NETWORK),
        batches={VLLM: None, LAMINA: 1, ROTATIONAL: 2}[way],
        gpu_memory_utilization=MEMORY_SHARE,
    )


def system_name(way: str) -> str:
    """Return the system behind a way to serve."""
    return "vllm" if way == VLLM else "lamina-v1"


def most_requests(way: str, chosen: Setup, context: int) -> int:
    """Return how many requests of this length fit."""
    spec = system(system_name(way)).build(replace(chosen, max_num_seqs=1)).spec
    blocks = -(-context // spec.block_tokens)
    return spec.pools * (spec.tokens_per_pool // spec.block_tokens // blocks)


def usd(served_on: Deployment, share: float = 1) -> float:
    """Return the devices' cost as section 6 counts: memory devices have an RTX 3090's cost efficiency.

    v1 prices no A100 of 40 GB; as a computation device it costs a `share` of one of 80 GB.
    """
    card, consumer = device("a100-80g"), device("rtx-3090")
    assert card.purchase is not None
    assert consumer.purchase_usd_per_gb is not None
    memory_gb = 0.0 if served_on.attention is None else served_on.attention.memory_bytes / GB
    return served_on.model.count * share * card.purchase.usd + memory_gb * consumer.purchase_usd_per_gb


def point(way: str, chosen: Setup, context: int, batch: int) -> Point:
    """Simulate a batch that begins together and ends together."""
    outcome, times = one_batch(system_name(way), chosen, context, batch)
    # With batches in rotation the others' work is in a step too: there is no such remainder.
    network = times["duration"] - times["model"] - times["attention"] - times["host"]
    return Point(
        chosen.model.name,
        way,
        chosen.costs.name,
        context,
        batch,
        batch * STEPS / outcome.end_s,
        times["duration"],
        times["model"],
        times["attention"],
        network if way != ROTATIONAL else float("nan"),
        times["host"],
    )


def sweep(way: str, model_name: str, costs: CostSet, context: int, batches: tuple[int, ...]) -> list[Point]:
    """Return the points of the batches that fit, and of the largest that does."""
    chosen = setup(way, model_name, costs)
    most = most_requests(way, chosen, context)
    least = 2 if way == ROTATIONAL else 1
    sizes = sorted({batch for batch in (*batches, most) if least <= batch <= most})
    return [point(way, chosen, context, batch) for batch in sizes]


def points_frame(
    context: Context, ways: tuple[str, ...], lengths: tuple[int, ...], batches: tuple[int, ...]
) -> pd.DataFrame:
    """Return the points of both models, with the measured sets and the derived one."""
    points = [
        each
        for costs in (*context.costs(), load_costs(DERIVED))
        for name in DOPS
        for length in lengths
        for way in ways
        for each in sweep(way, name, costs, length, batches)
    ]
    return pd.DataFrame(points, columns=Point._fields)


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what bands and the first of the claims are over."""
    return frame[frame["costs"] != DERIVED]


def derived(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the speed that v1's Table 3 implies."""
    return frame[frame["costs"] == DERIVED]


def over(frame: pd.DataFrame, column: str, above: str, below: str, *more: str) -> pd.Series[float]:
    """Return one system's values over another's, in each case that has both."""
    table = frame.set_index([*CASE, *more, "system"])[column].unstack()
    ratio: pd.Series[float] = (table[above] / table[below]).dropna()
    return ratio


def by_context(lengths: tuple[int, ...], ratios: dict[str, pd.Series[float]]) -> pd.DataFrame:
    """Return ratios by kind as points, side by side for the models at each context."""
    frame = pd.concat(
        [series.rename("ratio").reset_index().assign(kind=kind) for kind, series in ratios.items()]
    )
    aside = frame["model"].map(dict(zip(DOPS, (-0.1, 0.1), strict=True)))
    return frame.assign(at=frame["context"].map(lengths.index) + aside)
