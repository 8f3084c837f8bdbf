"""v1's testbed (section 6): A100 of 40 GB in both roles, and full batches of requests of one length."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import Deployment, Workers
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, device
from laminabench.catalog.network import parse_network
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.render.style import PURPLE, Looks
from laminabench.systems.modelled.lamina_v1 import NETWORK
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.registry import system
from laminabench.traces.table import Trace, TraceMeta, make_trace
from laminabench.workflows.replay import Workload, replay

CARD = "a100-40g"
# Computation and memory devices. LLaMA-13B's are in section 6.3; the paper does not say LLaMA-33B's: its
# weights need two cards, and eight memory devices are assumed.
DOPS = {"llama-13b": (1, 3), "llama-33b": (2, 8)}
# The card has 40 GiB, which are more bytes than the data sheet's and the catalogue's 40 GB; systems use 90 %
# of them.
MEMORY_SHARE = 0.9 * 40 * 2**30 / (40 * GB)
VLLM, LAMINA, ROTATIONAL = "vLLM", "Lamina", "Lamina, rotational"
WAYS = (VLLM, LAMINA, ROTATIONAL)
# Tokens that every request makes: enough for a mean step, few enough that its context stays what it is.
STEPS = 12
# Which says so in a picture, and is no measured set: bands never span it.
DERIVED, DERIVED_LABEL = "v1-table3", "derived from v1's Table 3"
DERIVED_MARK: Looks = {"color": PURPLE, "marker": "D", "markersize": 3, "linestyle": ""}
# Under the picture of what rests on the network and shows the derived set.
NOT_MEASURED = (
    f"Purple is {DERIVED_LABEL} ({DERIVED}): nobody's measurement. The network's 33 us and 24.2 GB/s are "
    "v1's own (figure 15)."
)
TESTBED = (
    "A100-40G in both roles, (1, 3) for 13B as in section 6.3, (2, 8) for 33B is assumed, 90 % of 40 GiB used"
)
HOW = "modelled: {sets}; " + TESTBED


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
    """Tokens, prompt and answer, of a request that just fits when it is alone."""
    spec = system(system_name(way)).build(replace(chosen, max_num_seqs=1)).spec
    return spec.tokens_per_pool // spec.block_tokens * spec.block_tokens


def deployment(way: str, model_name: str, memory_devices: int | None = None) -> Deployment:
    """The testbed's cards in their roles; as many memory devices as `DOPS` says, unless told."""
    computation, usual = DOPS[model_name]
    card = device(CARD)
    memory = None if way == VLLM else Workers(card, memory_devices or usual)
    return Deployment(Workers(card, computation), memory)


def setup(way: str, model_name: str, costs: CostSet, memory_devices: int | None = None) -> Setup:
    """One of `WAYS` to serve a model on the testbed."""
    return Setup(
        model(model_name),
        deployment(way, model_name, memory_devices),
        costs,
        parse_network(NETWORK),
        batches={VLLM: None, LAMINA: 1, ROTATIONAL: 2}[way],
        memory_utilization=MEMORY_SHARE,
    )


def system_name(way: str) -> str:
    """The system behind a way to serve."""
    return "vllm" if way == VLLM else "lamina-v1"


def most_requests(way: str, chosen: Setup, context: int) -> int:
    """How many requests of this length fit."""
    spec = system(system_name(way)).build(replace(chosen, max_num_seqs=1)).spec
    blocks = -(-context // spec.block_tokens)
    return spec.pools * (spec.tokens_per_pool // spec.block_tokens // blocks)


def usd(served_on: Deployment, share: float = 1) -> float:
    """What the devices cost, as section 6 counts: memory devices have an RTX 3090's cost efficiency.

    v1 prices no A100 of 40 GB; as a computation device it costs a `share` of one of 80 GB.
    """
    card, consumer = device("a100-80g"), device("rtx-3090")
    assert card.purchase is not None
    assert consumer.purchase_usd_per_gb is not None
    memory_gb = 0.0 if served_on.attention is None else served_on.attention.memory_bytes / GB
    return served_on.model.count * share * card.purchase.usd + memory_gb * consumer.purchase_usd_per_gb


def requests(count: int, context: int) -> Trace:
    """So many requests that end with this context, all there at once."""
    prompts, outputs = np.full(count, context - STEPS, np.int32), np.full(count, STEPS, np.int32)
    meta = TraceMeta(f"fixed-{context}", source="profile", has_arrivals=False)
    return make_trace(np.zeros(count), prompts, outputs, meta)


def point(way: str, chosen: Setup, context: int, batch: int) -> Point:
    """Simulated: the batch begins together and ends together."""
    found = replay(
        requests(batch, context), system_name(way), replace(chosen, max_num_seqs=batch), Workload()
    )
    assert found.summary.requests.completed == batch
    done = found.outcome.iterations
    mean = {
        name: 1000 * float(done[f"{name}_s"].mean()) for name in ("duration", "model", "attention", "host")
    }
    # With batches in rotation the others' work is in a step too: there is no such remainder.
    network = mean["duration"] - mean["model"] - mean["attention"] - mean["host"]
    return Point(
        chosen.model.name,
        way,
        chosen.costs.name,
        context,
        batch,
        batch * STEPS / found.outcome.end_s,
        mean["duration"],
        mean["model"],
        mean["attention"],
        network if way != ROTATIONAL else float("nan"),
        mean["host"],
    )


def sweep(way: str, model_name: str, costs: CostSet, context: int, batches: tuple[int, ...]) -> list[Point]:
    """Those of the batches that fit, and the largest that does."""
    chosen = setup(way, model_name, costs)
    most = most_requests(way, chosen, context)
    least = 2 if way == ROTATIONAL else 1
    sizes = sorted({batch for batch in (*batches, most) if least <= batch <= most})
    return [point(way, chosen, context, batch) for batch in sizes]


def points_frame(
    ground: Ground, ways: tuple[str, ...], contexts: tuple[int, ...], batches: tuple[int, ...]
) -> pd.DataFrame:
    """What `sweep` has of both models, with the measured sets and the derived one: a row for each point."""
    points = [
        each
        for costs in (*ground.costs(), load_costs(DERIVED))
        for name in DOPS
        for context in contexts
        for way in ways
        for each in sweep(way, name, costs, context, batches)
    ]
    return pd.DataFrame(points, columns=Point._fields)


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """What bands and the first of the claims are over."""
    return frame[frame["costs"] != DERIVED]


def derived(frame: pd.DataFrame) -> pd.DataFrame:
    """The same with the speed that v1's Table 3 implies."""
    return frame[frame["costs"] == DERIVED]


def as_derived(claim: Claim, ours: tuple[float, float] | str, remark: str = "") -> Claim:
    """What v1 says, beside what comes out with the speed that its Table 3 implies."""
    return replace(
        claim,
        what=f"{claim.what}: the same with the speed that Table 3 implies",
        ours=ours,
        how=f"modelled: {DERIVED}, {DERIVED_LABEL}; {TESTBED}",
        rests_on=(*dict.fromkeys((*claim.rests_on, "paper's own numbers")),),
        remark=remark,
    )
