"""A server, as it was set up, on the modelled cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from laminabench.catalog.cost_terms import HostCost, coefficients
from laminabench.catalog.costs import CostSet, known_devices
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import modelled
from laminabench.catalog.host import schedules_ahead, with_host
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import parse_network
from laminabench.sim.outcome import Columns
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Fleet
from laminabench.systems.modelled.setup import MEMORY_SHARE, Setup, with_prompts
from laminabench.systems.registry import of_server
from laminabench.traces.table import Trace


def replayed(
    about: Mapping[str, Any],
    trace: Trace,
    costs: CostSet,
    *,
    concurrency: int | None = None,
    model: ModelShape | None = None,
    host: HostCost | None = None,
) -> Columns:
    """Return the requests' times; `about` has the deployment, the model by default, and known settings.

    They are sent when they arrive, or so many are there at once.

    `host` is a server's, if the cost set's is not to count: that of its server where one was measured.

    A server whose deployment has attention workers is this project's own, any other is as vLLM is.
    """
    deployment = parse_deployment(about["deployment"], known_devices([costs]))
    deployed = of_server(deployment)
    if host is None:
        costs = _as_served(costs, alone=deployment.attention is None)
    setup = Setup(
        model=model or modelled(about["model"]),
        deployment=deployment,
        costs=with_host(costs, host),
        network=parse_network(next(iter(costs.networks), deployed.NETWORK), costs.networks),
        # What was measured between steps is what the host did not hide.
        host_async=schedules_ahead(
            host or costs.host, about["host_async"] and costs.host.origin.kind != "measured"
        ),
        graph_rows=about.get("graph_rows"),
        max_num_seqs=about.get("max_num_seqs"),
        kv_tokens=about.get("kv_tokens"),
        gpu_memory_utilization=about.get("memory_utilization", MEMORY_SHARE),
        overlap=False,  # the engine's workers get q, k and v at once
    )
    setup = with_prompts(setup, about["max_batched_tokens"], prefix_sharing=about["prefix_caching"])
    fleet = Fleet((deployed.build(setup).spec,), keep_iterations=False)
    offered = Offered("closed", concurrency) if concurrency else Offered("open")
    return simulate(trace, fleet, offered).requests


def _as_served(costs: CostSet, *, alone: bool) -> CostSet:
    """Return the set with the host of its server, where one was measured: in one process."""
    if costs.server is None:
        return costs
    same = {} if alone else {name: getattr(costs.host, name) for name in coefficients(HostCost)}
    return structs.replace(costs, host=structs.replace(costs.server, **same))
