"""The replays of a comparison as Runs: each as a request of its own, which anybody can repeat."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from laminabench.catalog.cost_terms import HostCost
from laminabench.catalog.costs import CostSet
from laminabench.catalog.models import ModelShape
from laminabench.requests.replay import ReplayRequest
from laminabench.traces.table import Trace
from laminabench.workflows.compare.cells import placed
from laminabench.workflows.compare.spec import ComparisonSpec, Deployed
from laminabench.workflows.replay import run


class Side(NamedTuple):
    """What a comparison replayed, and under which name its Run is kept."""

    name: str
    request: ReplayRequest
    trace: Trace  # without the requests that one of the systems could never hold


def sides(
    specs: Sequence[ComparisonSpec],
    model: ModelShape,
    trace: Trace,
    costs: CostSet,
    asked: ReplayRequest,
) -> Iterator[Side]:
    """Every system of every spec, each thing once; `asked` has what all of them have in common.

    Readings with everyone's host as slow are left out: they explain a gain and are nobody's deployment.
    """
    seen: list[ReplayRequest] = []
    for spec in specs:
        if spec.reading and spec.reading.alike:
            continue
        found = placed(spec, model, trace, costs)
        for name, each in found.chosen.items():
            request = request_of(name, each, spec, asked)
            if request not in seen:
                seen.append(request)
                yield Side(_named(name, spec, costs), request, found.kept)


def request_of(name: str, on: Deployed, spec: ComparisonSpec, asked: ReplayRequest) -> ReplayRequest:
    """What replays this system as the comparison does."""
    # Devices for prompts are said by --prefill.
    instances = [str(replace(each, prefill=None)) for each in on.routed.instances]
    alike = len(set(instances)) == 1
    several = len(instances) > 1
    host = spec.hosts.get(name)
    return structs.replace(
        asked,
        system=name,
        deployment=instances[0] if alike else ",".join(instances),
        instances=len(instances) if several and alike else None,
        router=spec.router if several else None,
        queue=spec.queue if several else None,
        host=None if host is None else _said(host),
        host_async=True if name in spec.host_async else None,
        max_num_seqs=on.setup.max_num_seqs,
    )


def keep(found: Sequence[Side], directory: Path, progress: Callable[[int, int], None]) -> list[Path]:
    """Replay each, and keep its Run in the folder."""
    paths = [directory / f"{place}-{side.name}" for place, side in enumerate(found, 1)]
    for done, (side, path) in enumerate(zip(found, paths, strict=True)):
        progress(done, len(found))
        run(structs.replace(side.request, directory=str(path)), trace=side.trace)
    return paths


def _named(system: str, spec: ComparisonSpec, costs: CostSet) -> str:
    """A folder's name. The range of an era's host is that of the era's own system."""
    reading = spec.reading
    told = (
        costs.name if reading is None else str(reading) if reading.era.system == system else reading.era.name
    )
    return re.sub(r"[^a-z0-9.]+", "-", f"{system} {told}".lower())


def _said(host: HostCost) -> str:
    """As --host takes it."""
    each = f",{1e6 * host.per_request_s:.12g}us" if host.per_request_s else ""
    return f"{1e3 * host.per_step_s:.12g}ms{each}"
