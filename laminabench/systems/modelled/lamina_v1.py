"""Attention offloading (v1 paper): requests distributed over cheap memory devices, transfers streamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from laminabench.catalog.models import ModelShape
from laminabench.systems.modelled.lamina import Lamina
from laminabench.systems.modelled.setup import Modelled, Setup, by_size

# What the v1 paper measured, with GPUDirect RDMA.
NETWORK = "v1-gdr"
# Mini-batches that a batch is streamed in, so that transfers hide behind attention (v1 paper 5.2.1).
STREAM_CHUNKS = 4


class LaminaV1(Lamina):
    """The v1 variant of lamina: request-level partition and streaming instead of Q-early overlap."""

    NAME = "lamina-v1"
    COLOUR, MARKER = "#56b4e9", "square"
    PAGE_COLOUR = "#3d95cc"  # three to one against white
    PUBLISHED: ClassVar[Mapping[str, str]] = {}
    NETWORK = NETWORK
    # v1's cheap devices are not for rent: they are compared by what they cost to buy.
    PRICE_BASIS = "purchase"

    def default_deployment(self, model: ModelShape) -> str:
        """Return v1's deployment: LLaMA-13B on one A100, with RTX 3090-class memory devices."""
        return by_size(model, "1xa100-80g+3xrtx-3090", "2xa100-80g+8xrtx-3090")

    def _build(self, setup: Setup) -> Modelled:
        return super()._build(
            replace(
                setup,
                partition=setup.partition or "requests",
                stream_chunks=setup.stream_chunks or STREAM_CHUNKS,
                overlap=False,
            )
        )


SYSTEM = LaminaV1()
