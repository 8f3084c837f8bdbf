"""A server of vLLM, as it was set up, on the modelled cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import modelled
from laminabench.catalog.network import parse_network
from laminabench.sim.outcome import Columns
from laminabench.sim.simulate import Offered, simulate
from laminabench.systems.modelled.setup import Setup, with_prompts
from laminabench.systems.modelled.vllm import SYSTEM
from laminabench.traces.table import Trace


def replayed(about: Mapping[str, Any], trace: Trace, costs: CostSet) -> Columns:
    """The requests' times; `about` has the model, the deployment, and what of vLLM's settings is known."""
    setup = Setup(
        model=modelled(about["model"]),
        deployment=parse_deployment(about["deployment"]),
        costs=costs,
        network=parse_network(SYSTEM.NETWORK),
        host_async=about["host_async"],
        max_num_seqs=about.get("max_num_seqs"),
        kv_capacity=about.get("kv_tokens"),
    )
    setup = with_prompts(setup, about["max_batched_tokens"], prefix_sharing=about["prefix_caching"])
    return simulate(trace, SYSTEM.build(setup).spec, Offered("open")).requests
