"""Attention offloading (v1 paper): requests dealt out to cheap memory devices, transfers streamed."""

from __future__ import annotations

from dataclasses import replace

from laminabench.catalog.models import ModelShape
from laminabench.systems import lamina
from laminabench.systems.setup import Modelled, Setup, by_size

# What the v1 paper measured, with GPUDirect RDMA.
NETWORK = "v1-gdr"
# Mini-batches that a batch is streamed in, so that transfers hide behind attention (v1 paper 5.2.1).
STREAM_CHUNKS = 4


def default_deployment(model: ModelShape) -> str:
    """v1 serves LLaMA-13B from one A100 and, in its economics, RTX 3090-class memory devices."""
    return by_size(model, "1xa100-80g+3xrtx-3090", "2xa100-80g+8xrtx-3090")


def build(setup: Setup) -> Modelled:
    """v2's machinery with v1's choices: request-level partition and streaming instead of Q-early overlap."""
    return lamina.build(
        replace(
            setup,
            partition=setup.partition or "requests",
            stream_chunks=setup.stream_chunks or STREAM_CHUNKS,
            overlap=False,
        )
    )
