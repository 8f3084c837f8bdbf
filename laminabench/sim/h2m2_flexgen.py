"""FlexGen's choice of what goes where, as the H2M2 paper adapts it to a board with two memories."""

from __future__ import annotations

from collections.abc import Mapping

from laminabench.catalog.boards import Board


def solve_shares(
    board: Board, bytes_by_sublayer: Mapping[str, float], group: int, batch: int
) -> tuple[float, float] | None:
    """The linear programme over the shares of weights and of KV in HBM; None if nothing fits.

    Each side's operations at its units' peak rate, and each side's bytes within its memory: bandwidths it
    does not see, and qkv and fc are weights alike. `group` query heads use each byte of KV.
    """
    from scipy.optimize import linprog

    weights = bytes_by_sublayer["qkv"] + bytes_by_sublayer["fc"]
    kv = bytes_by_sublayer["attention"]
    per_core = board.clock_hz * board.cores
    weights_s = weights * batch / (per_core * board.mm_size**2)
    kv_s = kv * group / (per_core * board.mv_rows * board.mv_width)
    # Minimise the last of (weights, kv, time), in units near one, as solvers want them.
    size, time = weights + kv, weights_s + kv_s
    in_bytes = (weights / size, kv / size)
    in_time = (weights_s / time, kv_s / time)
    hbm, lpddr = board.hbm, board.lpddr
    limits = [
        ((in_time[0] / hbm.chips, in_time[1] / hbm.chips, -1.0), 0.0),
        ((-in_time[0] / lpddr.chips, -in_time[1] / lpddr.chips, -1.0), -1.0 / lpddr.chips),
        ((*in_bytes, 0.0), hbm.capacity_bytes / size),
        ((-in_bytes[0], -in_bytes[1], 0.0), lpddr.capacity_bytes / size - 1.0),
    ]
    solved = linprog(
        (0.0, 0.0, 1.0),
        A_ub=[row for row, _ in limits],
        b_ub=[limit for _, limit in limits],
        bounds=[(0, 1), (0, 1), (0, None)],
        method="highs",
    )
    return (float(solved.x[0]), float(solved.x[1])) if solved.success else None
