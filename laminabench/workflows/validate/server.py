"""A server, as it was set up, on the modelled cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from msgspec import structs

from laminabench.catalog.cost_terms import HostCost, coefficients
from laminabench.catalog.costs import CostSet, known_devices
from laminabench.catalog.deployment import Deployment, parse_deployment
from laminabench.catalog.find_model import modelled
from laminabench.catalog.host import schedules_ahead, with_host
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import parse_network
from laminabench.sim.outcome import Columns
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Fleet, Spec, Timing
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

    They are sent when they arrive, or so many are there at once. Of a server with prompts elsewhere,
    `prefill` are the devices for these, and `decode_workers` the number of deployments that decode.

    `host` is a server's, if the cost set's is not to count: that of its server where one was measured.

    A server whose deployment has attention workers is this project's own, any other is as vLLM is.
    """
    deployment = parse_deployment(about["deployment"], known_devices([costs]))
    deployment = replace(deployment, prefill=about.get("prefill"))
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
    spec = deployed.build(setup).spec
    if (workers := about.get("decode_workers", 1)) > 1:
        spec = in_step(spec, workers, deployment)
    fleet = Fleet((spec,), keep_iterations=False)
    offered = Offered("closed", concurrency) if concurrency else Offered("open")
    return simulate(trace, fleet, offered).requests


def _as_served(costs: CostSet, *, alone: bool) -> CostSet:
    """Return the set with the host of its server, where one was measured: in one process."""
    if costs.server is None:
        return costs
    same = {} if alone else {name: getattr(costs.host, name) for name in coefficients(HostCost)}
    return structs.replace(costs, host=structs.replace(costs.server, **same))


def in_step(spec: Spec, workers: int, each: Deployment) -> Spec:
    """Return so many deployments that decode as one, with one pool for prompts.

    Each has KV of its own and its share of the requests. They wait for each other in every iteration, which
    takes as long as that of the one with the most.
    """
    timing, pool, prompts = spec.timing, spec.pool, each.prefill
    assert isinstance(timing, Timing)
    assert pool is not None
    assert prompts is not None
    # KV comes over as many links as the side with fewer devices has.
    wider = min(prompts.count, workers * each.model.count) / min(prompts.count, each.model.count)
    pool = replace(pool, per_token=pool.per_token / wider, windowed_per_token=pool.windowed_per_token / wider)
    most = len(timing.first_slice) - 1
    shared = -(-np.arange(workers * most + 1) // workers)
    tables = {each.name: getattr(timing, each.name) for each in fields(timing)}
    stretched: dict[str, Any] = {
        name: of[shared] for name, of in tables.items() if isinstance(of, np.ndarray)
    }
    gap = timing.server.gap_per_request / workers
    timing = replace(
        timing,
        **stretched,
        host_per_request=timing.host_per_request / workers,
        server=replace(timing.server, gap_per_request=gap),
    )
    return replace(
        spec,
        timing=timing,
        pool=pool,
        pools=workers * spec.pools,
        max_requests=workers * spec.max_requests,
    )
