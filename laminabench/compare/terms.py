"""What systems are compared on: the choices that hold for every model, trace and cost set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import Deployment, parse_deployment
from laminabench.catalog.hardware import Device
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import Network, parse_network
from laminabench.errors import UserError
from laminabench.replay import Workload
from laminabench.sim.spec import Admission
from laminabench.systems.registry import system
from laminabench.systems.setup import Setup


@dataclass(frozen=True, slots=True)
class EqualCost:
    """Deployments must be of about the same price, and may be chosen so that they are."""

    tolerance: float = 0.1
    # Kinds to choose from; those of the systems' deployments where there are none.
    devices: tuple[Device, ...] = ()

    def allows(self, usd_per_hour: float | None, reference: float) -> bool:
        """Whether this price is about equal to the reference; one that nobody knows is not."""
        return usd_per_hour is not None and abs(usd_per_hour - reference) <= self.tolerance * reference


@dataclass(frozen=True, slots=True)
class Terms:
    """The first system is the one whose price the others are held to."""

    systems: tuple[str, ...]
    given: Mapping[str, Deployment] = field(default_factory=dict)  # in place of the papers'
    catalogue: Mapping[str, Device] | None = None  # with the user's prices
    network: Network | None = None  # each paper's own, if None
    host_async: tuple[str, ...] = ()  # whose host works behind the devices
    admission: Admission = "reserve"
    workload: Workload = field(default_factory=Workload)
    equal_cost: EqualCost | None = None

    def setups(self, model: ModelShape, costs: CostSet) -> dict[str, Setup]:
        """Every system on the deployment that was given for it, or its paper's for this model."""
        return {name: self.setup(name, model, costs, self._deployment(name, model)) for name in self.systems}

    def setup(self, name: str, model: ModelShape, costs: CostSet, deployment: Deployment) -> Setup:
        """One system on this deployment."""
        return Setup(
            model,
            deployment,
            costs,
            self.network or parse_network(system(name).NETWORK),
            host_async=name in self.host_async,
            admission=self.admission,
        )

    def _deployment(self, name: str, model: ModelShape) -> Deployment:
        return self.given.get(name) or parse_deployment(
            system(name).default_deployment(model), self.catalogue
        )


def price_of(name: str, setup: Setup) -> float:
    """What a deployment costs an hour; a UserError if nobody knows, or it is nothing."""
    usd = setup.deployment.usd_per_hour
    if not usd:
        raise UserError(
            f"{setup.deployment} of {name} has no price to compare by; --price DEVICE=USD gives one"
        )
    return usd
