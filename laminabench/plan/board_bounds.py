"""A board's times as straight lines and tables that its iterations cannot undercut: for bounds.

A sublayer takes as long as the slower side. Each side's bytes go through its own memory and its multiply-adds
through its own arrays, so both sides together would need no less if one of them had it all with the bandwidth
and the cores of both. docs/plan.md has the steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from laminabench.catalog.boards import Board
from laminabench.catalog.models import ModelShape
from laminabench.plan.tables import Tables
from laminabench.sim.spec import BoardTiming, Float64, Spec, shape_of

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
