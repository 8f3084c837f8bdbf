"""Systems of an era, at each end of the range that its sources leave open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from laminabench.catalog.cost_terms import HostCost
from laminabench.catalog.eras import Era
from laminabench.workflows.compare.spec import ComparisonSpec, Reading


def readings_of(spec: ComparisonSpec, era: Era) -> tuple[ComparisonSpec, ...]:
    """Return the spec with each end of the era's host range; then with all hosts as slow.

    The era's limit belongs to a deployment: `limit_in` of `spec.py` has it.
    What the last ones lack of the others' gain is due to the difference of the hosts.
    """
    spec = replace(spec, reading=Reading(era))
    if era.host_async:
        spec = replace(spec, host_async=spec.systems)
    return tuple(_with_hosts(spec, era)) or (spec,)


def _with_hosts(spec: ComparisonSpec, era: Era) -> Iterator[ComparisonSpec]:
    for same_host in (False, True):
        for host in era.hosts:
            slow = spec.systems if same_host else (era.system,)
            hosts: dict[str, HostCost] = {**spec.hosts, **dict.fromkeys(slow, host)}
            text = f"{1000 * host.per_step_s:g} ms"
            yield replace(spec, hosts=hosts, reading=Reading(era, text, same_host))
