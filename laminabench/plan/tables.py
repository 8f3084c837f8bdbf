"""A candidate's times by batch size, as bounds look them up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from laminabench.catalog.boards import Board
from laminabench.catalog.models import ModelShape
from laminabench.sim.spec import BoardTiming, Float64, Spec, Timing, shape_of


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


# Policies that run an iteration on a board's two sides as they are.
_OTHER_DEVICES = ("8-hbm",)


def tables_of_boards(spec: Spec, timing: BoardTiming, most: int) -> Tables | None:
    """Of all copies in step, as one pool of each; None where nothing is known of the policy.

    They are not in step, but sums over the boards' iterations, divided by the number of boards, are these.
    """
    if timing.mapping in _OTHER_DEVICES:
        return None
    # Of a board, where all of them have so many requests together.
    batch = np.arange(1, most + 1) / spec.copies
    zero = np.zeros(most)
    host = zero if timing.host_async else timing.host_fixed + batch * timing.host_per_request
    board, model = timing.board, timing.model
    launches = model.layers * board.kernels * board.launch_s
    chain = host + launches + _weights_s(board, model, batch)
    per_token = model.layers * _kv_token_s(board, model) / spec.copies
    return Tables(1, model.layers, 1, zero, zero, zero, per_token, chain)


def _weights_s(board: Board, model: ModelShape, batch: Float64) -> Float64:
    """All matrices once: the slower of reading them and of multiplying by them, each at its best."""
    bandwidth, cores, width = _bytes_per_s(board), _cores(board), shape_of(model)["element_bytes"]
    load = np.maximum(board.mm_size, batch) if board.weight_load == "behind" else board.mm_size + batch
    total = np.zeros_like(batch)
    for times, elements in _matrices(model):
        computing = elements / board.mm_size**2 / cores * load / board.clock_hz
        total += times * np.maximum(computing, elements * width / bandwidth)
    return total


def _matrices(model: ModelShape) -> Iterator[tuple[int, float]]:
    """How often there is one, and its elements."""
    for gemm in model.layer_gemms(1):
        yield model.layers, gemm.n * gemm.k
    yield 1, model.vocab * model.hidden


def _kv_token_s(board: Board, model: ModelShape) -> float:
    """One token of KV in one layer: the slowest of reading it, multiplying by it, and its softmax."""
    read = 2 * model.kv_size * shape_of(model)["element_bytes"] * (model.group if board.reread_kv else 1)
    products = 2 * model.heads / board.mv_rows
    softmax = 3 * model.heads / board.vector_width
    return max(read / _bytes_per_s(board), max(products, softmax) / _cores(board) / board.clock_hz)


def _bytes_per_s(board: Board) -> float:
    return (board.hbm.bandwidth_bytes_per_s + board.lpddr.bandwidth_bytes_per_s) * board.dram_efficiency


def _cores(board: Board) -> int:
    return board.cores * (board.hbm.chips + board.lpddr.chips)
