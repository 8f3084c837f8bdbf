"""Single decode steps of v2's Lamina: one batch of requests of one length, without pipelining."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.network import parse_network
from laminabench.figures.papers.v1.testbed import requests
from laminabench.replay import Workload, replay
from laminabench.systems.modelled.lamina import NETWORK, build, default_deployment
from laminabench.systems.modelled.setup import Setup


class Step(NamedTuple):
    """Of one batch; parts are as if each were alone, so they can add up to more than the TBT."""

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


def serial(model_name: str, costs: CostSet, deployment: str | None = None) -> Setup:
    """Lamina with one batch, on Table 5's devices unless told."""
    shape = model(model_name)
    chosen = parse_deployment(deployment or default_deployment(shape))
    return Setup(shape, chosen, costs, parse_network(NETWORK), batches=1)


def most_requests(setup: Setup, context: int) -> int:
    """How many requests of this length fit."""
    return build(replace(setup, max_num_seqs=1)).spec.tokens_per_pool // context


def step(setup: Setup, context: int, batch: int) -> Step:
    """Simulated: the batch begins together and ends together; means of its iterations."""
    done = replay(
        requests(batch, context), "lamina", replace(setup, max_num_seqs=batch), Workload()
    ).outcome.iterations
    assert set(done["size"]) == {batch}, "a batch that does not fit is no batch"
    names = ("duration_s", "model_s", "attention_s", "network_s", "host_s")
    times = (1000 * float(done[name].mean()) for name in names)
    return Step(setup.costs.name, setup.model.name, str(setup.deployment), context, batch, *times)


def sizes(most: int) -> list[int]:
    """Batches to look at, four for each doubling, and what memory holds."""
    fourths = {part << place for part in (4, 5, 6, 7) for place in range(most.bit_length())}
    return sorted({batch for batch in {1, 2, 3} | fourths if batch < most} | {most})
