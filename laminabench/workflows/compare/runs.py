"""The replays of a comparison as Runs: each with the request that repeats it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from laminabench.catalog.cost_terms import HostCost
from laminabench.catalog.costs import CostSet
from laminabench.requests.replay import ReplayRequest
from laminabench.runs.read import Run
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.registry import prepare, takes
from laminabench.systems.registry import system as find
from laminabench.traces.table import Trace
from laminabench.workflows.compare.spec import ComparisonSpec, Deployed
from laminabench.workflows.replay import Replayed, Result


class CellRun(NamedTuple):
    """A replay of a cell, and the name of its folder."""

    name: str
    request: ReplayRequest
    run: Run


def run_of(
    system: str,
    deployed: Deployed,
    spec: ComparisonSpec,
    costs: CostSet,
    common: ReplayRequest,
    trace: Trace,
    replayed: Replayed,
) -> CellRun:
    """Return what was replayed as a Run; `common` is what all replays have in common."""
    request = request_of(system, deployed, spec, common)
    result = Result(prepare(request), trace, replayed, None, replayed.simulation_s or 0.0)
    return CellRun(_name_of(system, spec, costs), request, result.as_run(request))


def request_of(system: str, deployed: Deployed, spec: ComparisonSpec, common: ReplayRequest) -> ReplayRequest:
    """Return the request that repeats a replay."""
    # Devices for prompts are part of --prefill.
    instances = [str(replace(each, prefill=None)) for each in deployed.routed.instances]
    uniform = len(set(instances)) == 1
    several = len(instances) > 1
    host = spec.hosts.get(system)
    return structs.replace(
        common,
        system=system,
        deployment=instances[0] if uniform else ",".join(instances),
        instances=len(instances) if several and uniform else None,
        router=spec.router if several else None,
        queue=spec.queue if several else None,
        host=None if host is None else _host_text(host),
        host_async=True if system in spec.host_async else None,
        max_num_seqs=deployed.setup.max_num_seqs,
        **_chosen(system, deployed.setup, common),
    )


def _chosen(name: str, setup: Setup, common: ReplayRequest) -> dict[str, object]:
    """Return what a plan has chosen for this system alone."""
    chosen: dict[str, object] = {}
    if setup.batches and takes(find(name), "batches"):
        chosen["batches"] = setup.batches
    if setup.prompt_budget and common.prefill is None:
        pool = setup.deployment.prefill
        prefill = f"pool:{pool}" if pool else "colocated"
        chosen |= {"prefill": prefill, "max_batched_tokens": setup.prompt_budget}
    return chosen


def _name_of(system: str, spec: ComparisonSpec, costs: CostSet) -> str:
    """Return a folder's name. The range of an era's host is that of the era's own system."""
    reading = spec.reading
    if reading is None:
        label = f"{spec.load} {costs.name}"
    else:
        label = str(reading) if reading.era.system == system else reading.era.name
    return re.sub(r"[^a-z0-9.]+", "-", f"{system} {label.strip()}".lower())


def _host_text(host: HostCost) -> str:
    """Return a host's cost as --host takes it."""
    each = f",{1e6 * host.per_request_s:.12g}us" if host.per_request_s else ""
    return f"{1e3 * host.per_step_s:.12g}ms{each}"
