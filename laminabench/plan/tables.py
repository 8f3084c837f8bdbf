"""A candidate's times by batch size, as bounds look them up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laminabench.sim.spec import Float64, Spec, Timing


@dataclass(frozen=True)
class Tables:
    """Seconds an iteration by batch size, all layers, attention's part in KV tokens apart."""

    batches: int
    layers: int
    replicas: int
    mid: Float64
    model: Float64
    # As one attention: the fixed part of all layers, and seconds a KV token of the batch.
    attention: Float64
    per_token: float
    chain: Float64  # all of it, one after the other


def tables_of_costs(spec: Spec, timing: Timing, most: int) -> Tables:
    """As the simulator reads them."""
    layers = spec.layers
    requests = np.arange(1, most + 1)
    rows = slice(1, most + 1)

    def table(values: Float64 | float) -> Float64:
        return np.broadcast_to(np.asarray(values, np.float64), len(timing.first_slice))[rows]

    mid = table(timing.mid_slice)
    model = table(timing.first_slice) + (layers - 1) * mid + table(timing.last_slice)
    attention = layers * (table(timing.attention_fixed) + timing.combine)
    per_token = layers * float(table(timing.attention_per_token).min()) / spec.pools
    host = requests * 0.0 if timing.host_async else timing.host_fixed + requests * timing.host_per_request
    crossing = _crossing(timing, table(timing.q_transfer), table(timing.out_transfer))
    chain = host + model + attention + layers * (crossing - table(timing.q_lead))
    return Tables(spec.batches, layers, len(spec.replica_names), mid, model, attention, per_token, chain)


def _crossing(timing: Timing, to: Float64, back: Float64) -> Float64:
    """A layer's way to attention and back; of what is streamed, the part that hides behind nothing."""
    chunks, latency = timing.stream_chunks, timing.transfer_latency
    if chunks == 1:
        return to + back
    return 2 * latency + (to + back - 2 * latency) / chunks
