"""The systems by name."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from laminabench.catalog.models import ModelShape
from laminabench.systems.setup import Modelled, Setup


class System(Protocol):
    """What a system's module offers."""

    TITLE: str
    NETWORK: str

    def default_deployment(self, model: ModelShape) -> str:
        """The papers' deployment for a model of this size."""

    def build(self, setup: Setup) -> Modelled:
        """The deployment as the simulator takes it."""


MODULES = {"lamina": "lamina", "lamina-v1": "lamina_v1", "vllm": "vllm"}


def system(name: str) -> System:
    """The module of that name, as a System."""
    return cast("System", importlib.import_module(f"laminabench.systems.{MODULES[name]}"))
