"""Coefficients for what a folder has no table of."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.cost_terms import Origin
from laminabench.catalog.hardware import Device


def packaged(term: str, on: Device, reason: str) -> Any:
    """The default set's coefficients of a device, or of the one that it borrows from; kind `assumed`."""
    costs = load_costs()
    measured = costs.measured_as(on)
    cost = getattr(costs, term)[measured]
    if measured != on.name:
        reason += f"; {on.name} borrows: {costs.borrowed[on.name].reason}"
    source = f"{reason}; {costs.name}'s of {measured}: {cost.origin.source}"
    return replace(cost, origin=Origin("assumed", source, cost.origin.range))
