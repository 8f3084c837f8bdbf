"""Which sublayer a greedy mapping places first, and what that is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from laminabench.catalog.boards import Board
from laminabench.catalog.models import ModelShape
from laminabench.sim.h2m2 import Mapping, Moment, Plan, time_of

Sublayer = Literal["qkv", "attention", "fc"]
# Algorithm 1's, and its opposite.
PAPERS: tuple[Sublayer, ...] = ("attention", "qkv", "fc")
OPPOSITE: tuple[Sublayer, ...] = ("fc", "qkv", "attention")


def greedy(board: Board, shape: ModelShape, moment: Moment, order: tuple[Sublayer, ...]) -> Plan:
    """One sublayer after another, each with the heads in HBM that make it fastest and still fit.

    Unlike Algorithm 1 this takes the sublayer's modelled time, so that only the order makes a difference.
    """
    mapping = Mapping(0, 0, 0)
    for sublayer in order:
        mapping = _placed(board, shape, moment, mapping, sublayer)
    return time_of(board, shape, mapping, moment)


def _placed(board: Board, shape: ModelShape, moment: Moment, mapping: Mapping, sublayer: Sublayer) -> Mapping:
    most = shape.kv_heads if sublayer == "attention" else shape.heads
    best, best_s = mapping, float("inf")
    for count in range(most + 1):
        tried = _with(mapping, sublayer, count)
        found = time_of(board, shape, tried, moment)
        if sum(found.hbm_bytes.values()) > board.hbm.capacity_bytes:
            break
        taken_s: float = getattr(found, f"{sublayer}_s")
        if taken_s < best_s:
            best, best_s = tried, taken_s
    return best


def _with(mapping: Mapping, sublayer: Sublayer, count: int) -> Mapping:
    if sublayer == "qkv":
        return replace(mapping, qkv=count)
    return replace(mapping, attention=count) if sublayer == "attention" else replace(mapping, fc=count)
