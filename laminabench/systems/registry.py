"""The systems by name."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import Network, parse_network
from laminabench.systems.setup import Modelled, Setup


class System(Protocol):
    """What a system's module offers."""

    NETWORK: str

    def default_deployment(self, model: ModelShape) -> str:
        """The papers' deployment for a model of this size."""

    def build(self, setup: Setup) -> Modelled:
        """The deployment as the simulator takes it."""


MODULES = {"lamina": "lamina", "lamina-v1": "lamina_v1", "vllm": "vllm", "h2m2": "h2m2"}


def system(name: str) -> System:
    """The module of that name, as a System."""
    return cast("System", importlib.import_module(f"laminabench.systems.{MODULES[name]}"))


def papers_setup(name: str, model: ModelShape, costs: CostSet, network: Network | None = None) -> Setup:
    """A system as its paper deploys it for this model; its paper's network too, unless another is given."""
    found = system(name)
    deployment = parse_deployment(found.default_deployment(model))
    return Setup(model, deployment, costs, network or parse_network(found.NETWORK))
