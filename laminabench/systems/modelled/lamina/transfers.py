"""Network transfers of every layer, and their times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from laminabench.catalog.cost_terms import ACTIVATION_BYTES
from laminabench.catalog.split_kernels import WIRE_BYTES
from laminabench.sim.spec import Float64
from laminabench.systems.modelled.setup import Setup, link_rate
from laminabench.util.errors import UserError

# Between a device and its host, over PCIe 4.0 x16; assumed, at the 25 GB/s that its copies usually reach.
PCIE_BYTES_PER_S = 25e9


class Transfers(NamedTuple):
    """Seconds by batch size, latency included; `latency` is the part that size does not change."""

    q: Float64
    kv: Float64
    qkv: Float64
    out: Float64
    latency: float


def transfers(setup: Setup, tp: int, batch: np.ndarray) -> Transfers:
    """Return the transfers of q, k, v to the attention workers and of the output back.

    Half of the measured round trip each way. Every worker has a NIC of its own, and a transfer between a and
    b workers uses as many links as the smaller side has. Before an output leaves, new KV is copied.
    """
    model = setup.model
    rate = link_rate(setup, tp)
    latency = setup.network.rtt_s / 2
    query, output = model.query_size, model.output_size
    if model.latent and setup.absorb == "attention":
        query, output = model.heads * model.latent.query, model.heads * model.latent.value
    width = WIRE_BYTES[setup.wire]
    q_bytes = width * query * batch
    kv_bytes = width * model.stored_size * batch
    out_bytes = width * output * batch
    return Transfers(
        latency + q_bytes / rate,
        latency + kv_bytes / rate,
        latency + (q_bytes + kv_bytes) / rate,
        latency + out_bytes / rate + copy_seconds(setup, batch),
        latency,
    )


def copy_seconds(setup: Setup, batch: np.ndarray) -> Float64:
    """Return the time to copy a layer's new KV to the next attention workers, or to their hosts."""
    attention = setup.attention
    if setup.kv_copy == "none":
        return np.zeros(len(batch))
    link = PCIE_BYTES_PER_S
    if setup.kv_copy == "worker":
        link = setup.network.on(attention.device.nic_bytes_per_s).bandwidth_bytes_per_s
    seconds: Float64 = setup.model.kv_bytes_per_token / setup.model.layers * batch / (attention.count * link)
    return seconds


def require_copies(setup: Setup) -> None:
    """Raise a UserError for copies of KV that are not modelled, or have no place."""
    if setup.kv_copy == "disk":
        raise UserError(
            "kv-copy-not-modelled",
            "--kv-copy disk: no disk's times are known to the model; take host or worker, or --backend live",
        )
    if setup.kv_copy == "worker" and setup.deployment.dop[1] < 2:
        raise UserError(
            "kv-copy-alone",
            f"--kv-copy worker: {setup.deployment} has one attention worker; give two or more, or take host",
        )


def migration_seconds(setup: Setup, tp: int, batch: np.ndarray) -> Float64:
    """Return the time to move the context between slices, the residual stream, to the next replica."""
    context = ACTIVATION_BYTES * setup.model.hidden * batch
    rate = tp * setup.network.on(setup.deployment.model.device.nic_bytes_per_s).bandwidth_bytes_per_s
    seconds: Float64 = setup.network.rtt_s / 2 + context / rate
    return seconds
