"""Deployments of a system that a model can be served on, from kinds of devices and a price."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laminabench.catalog.deployment import Deployment
from laminabench.catalog.hardware import Device
from laminabench.catalog.models import ModelShape
from laminabench.systems.registry import system


def deployments(
    system_name: str,
    model: ModelShape,
    devices: Sequence[Device],
    *,
    usd_per_hour: tuple[float, float] = (0.0, float("inf")),
    most_attention: int = 32,
    replicas: int = 1,
) -> Iterator[Deployment]:
    """Those of the system whose price is within these, both ends included; memory may not suffice."""
    low, high = usd_per_hour
    found = system(system_name).deployments(model, devices, most_attention=most_attention, replicas=replicas)
    for each in found:
        price = each.usd_per_hour
        # A device without a price cannot be compared by cost.
        if price is not None and low <= price <= high:
            yield each
