"""What a plan chooses from: systems, each on every deployment within the budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from laminabench.candidates import deployments
from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import Deployment
from laminabench.catalog.hardware import Device
from laminabench.catalog.models import ModelShape

MOST_BATCHES = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A system on counted devices, and for lamina how many batches take turns."""

    system: str
    deployment: Deployment
    batches: int = 1

    @property
    def usd_per_hour(self) -> float:
        """Only deployments that have a price are candidates."""
        price = self.deployment.usd_per_hour
        assert price is not None
        return price

    def borrowed(self, costs: CostSet) -> tuple[str, ...]:
        """Those of its devices that nobody measured: they have another one's efficiencies."""
        devices = {part.device.name: part.device for part in self.deployment.parts}
        return tuple(
            name
            for name, device in devices.items()
            if name in costs.borrowed and costs.measured_as(device) == costs.borrowed[name].device
        )

    def __str__(self) -> str:
        turns = f", {self.batches} batches" if self.batches > 1 else ""
        return f"{self.system} {self.deployment}{turns}"


def candidates(
    systems: Sequence[str],
    model: ModelShape,
    devices: Sequence[Device],
    *,
    budget_usd_per_hour: float = float("inf"),
    most_devices: int | None = None,
) -> Iterator[Candidate]:
    """All of them, whether or not the model fits; vllm has one batch, the others up to three.

    Three batches rotate over two replicas, each of which holds all weights.
    """
    for name in systems:
        for batches in range(1, 2 if name == "vllm" else MOST_BATCHES + 1):
            found = deployments(
                name, model, devices, usd_per_hour=(0.0, budget_usd_per_hour), replicas=max(1, batches - 1)
            )
            for each in found:
                if most_devices is None or sum(part.count for part in each.parts) <= most_devices:
                    yield Candidate(name, each, batches)
