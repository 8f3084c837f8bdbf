"""Systems with the decode kernels that servers take without a flag, where these are not the usual ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from laminabench.catalog.kernels import out_of_the_box, with_kernels
from laminabench.runs.summary import number_at
from laminabench.systems.base import Workload
from laminabench.traces.table import Trace
from laminabench.workflows.compare.spec import Deployed
from laminabench.workflows.replay import replay
from laminabench.workflows.verdict import DefaultKernels


def with_default_kernels(chosen: Mapping[str, Deployed], trace: Trace, workload: Workload) -> DefaultKernels:
    """Replay each system whose server defaults to another decode kernel, on the same deployment."""
    kernels: dict[str, None] = {}
    rates: dict[str, float] = {}
    p99_ms: dict[str, float] = {}
    for name, on in chosen.items():
        setup = on.setup
        sides = [side for each in on.kinds for side in (each.deployment.model, each.deployment.attention)]
        own = out_of_the_box(setup.costs, (side.device.name for side in sides if side))
        if own and not setup.model.latent:
            other = replace(setup, costs=with_kernels(setup.costs, own))
            summary = replay(trace, name, other, workload, on.routed).summary
            rates[name] = summary.throughput_tokens_per_s or 0.0
            p99_ms[name] = number_at(summary, "tbt_ms.p99") or 0.0
            kernels |= dict.fromkeys(own)
    return DefaultKernels(tuple(kernels), rates, p99_ms)
