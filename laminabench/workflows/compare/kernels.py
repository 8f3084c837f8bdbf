"""Systems with the decode kernels that servers take without a flag, where these are not the usual ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from laminabench.catalog.kernels import out_of_the_box, with_kernels
from laminabench.systems.base import Workload
from laminabench.traces.table import Trace
from laminabench.workflows.compare.spec import Deployed
from laminabench.workflows.replay import replay


class OtherKernels(NamedTuple):
    """Throughput of the systems on devices that have other kernels; the rest stays as it is."""

    kernels: tuple[str, ...] = ()
    tokens_per_s: Mapping[str, float] = {}


def with_own_kernels(chosen: Mapping[str, Deployed], trace: Trace, workload: Workload) -> OtherKernels:
    """Replay what decodes on such devices again, on the same deployments."""
    kernels: dict[str, None] = {}
    rates: dict[str, float] = {}
    for name, on in chosen.items():
        setup = on.setup
        sides = [side for each in on.kinds for side in (each.deployment.model, each.deployment.attention)]
        own = out_of_the_box(setup.costs, (side.device.name for side in sides if side))
        if own and not setup.model.latent:
            other = replace(setup, costs=with_kernels(setup.costs, own))
            summary = replay(trace, name, other, workload, on.routed).summary
            rates[name] = summary.throughput_tokens_per_s or 0.0
            kernels |= dict.fromkeys(own)
    return OtherKernels(tuple(kernels), rates)
