"""The board's time model in plain Python, written for readability and not for speed.

One function a formula, each in nanoseconds and bytes, heads counted one by one. `board` and `shape` are the
dictionaries that the C++ side takes, `moment` is (batch, KV tokens, KV rows).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from laminabench.systems.modelled.h2m2.boards import board

Board = dict[str, Any]
Side = dict[str, Any]
Shape = dict[str, int]
Moment = tuple[int, int, int]
Mapping = tuple[int, int, int]  # qkv heads, attention groups, fc heads on the HBM side


def few_pages(hbm_pages: float, lpddr_pages: float, page_bytes: int) -> Board:
    """Return the paper's board with other memories."""
    native = board("h2m2").native()
    native["page_bytes"] = float(page_bytes)
    native["hbm"]["capacity_bytes"] = hbm_pages * page_bytes
    native["lpddr"]["capacity_bytes"] = lpddr_pages * page_bytes
    return native


def bandwidth(board: Board, side: Side) -> float:
    return board["dram_efficiency"] * side["bytes_per_ns"]


def array_cycles(board: Board, rows: float) -> float:
    """Return the cycles of one tile and `rows` rows of activations."""
    if board["weight_load"] == "before":
        return board["mm_size"] + rows
    return max(board["mm_size"], rows)


def miss_ns(board: Board, chips: int, unique_bytes: float) -> float:
    pages = math.ceil(unique_bytes / board["page_bytes"])
    return pages * board["tlb_miss_ns"] / (board["tlb_misses_at_once"] * chips)


def gemm(
    board: Board, side: Side, chips: int, shape: Shape, batch: int, k: int, n: float, misses: bool
) -> tuple[float, float]:
    """Return (time, DRAM's part of it) of a [batch, k] x [k, n] product."""
    if n == 0:
        return 0.0, 0.0
    cores = board["cores"] * chips
    tiles = math.ceil(k / board["mm_size"]) * math.ceil(n / board["mm_size"])
    waves = math.ceil(tiles / cores)
    input_bytes = batch * k * shape["element_bytes"]
    passes = max(1, math.ceil(input_bytes / (board["spm_bytes"] * cores)))
    compute = waves * passes * array_cycles(board, batch / passes) * board["cycle_ns"]
    weights = k * n * shape["element_bytes"]
    dram = (passes * weights + batch * (k + n) * shape["element_bytes"]) / bandwidth(board, side)
    fixed = 2 * side["latency_ns"] + 3 * board["mm_size"] * board["cycle_ns"]
    if misses:
        fixed += miss_ns(board, chips, weights)
    return max(compute, dram) + fixed, dram


def attention(
    board: Board, side: Side, chips: int, shape: Shape, moment: Moment, groups: int, misses: bool
) -> tuple[float, float]:
    if groups == 0:
        return 0.0, 0.0
    _, tokens, rows = moment
    cores = board["cores"] * chips
    group = shape["heads"] // shape["kv_heads"]
    heads = groups * group
    kv = 2 * shape["head_dim"] * groups * tokens * shape["element_bytes"]
    dram = kv * (group if board["reread_kv"] else 1) / bandwidth(board, side)
    products = 2 * heads * rows * math.ceil(shape["head_dim"] / board["mv_width"]) / cores
    softmax = 3 * heads * tokens / board["vector_width"] / cores
    fixed = 2 * side["latency_ns"]
    if misses:
        fixed += miss_ns(board, chips, kv)
    return max(dram, products * board["cycle_ns"], softmax * board["cycle_ns"]) + fixed, dram


def query(shape: Shape) -> int:
    return shape["heads"] * shape["head_dim"]


def qkv_columns(shape: Shape) -> int:
    return query(shape) + 2 * shape["kv_heads"] * shape["head_dim"]


def side_times(
    board: Board, side: Side, chips: int, shape: Shape, moment: Moment, mapping: Mapping, misses: bool
) -> dict[str, tuple[float, float]]:
    """Return (time, DRAM's part) at a side of each sublayer of a layer, and of the LM head."""
    q, a, f = mapping
    batch = moment[0]
    d, heads = shape["hidden"], shape["heads"]

    def gemms(*matrices: tuple[int, float]) -> tuple[float, float]:
        times = [gemm(board, side, chips, shape, batch, k, n, misses) for k, n in matrices]
        return sum(time for time, _ in times), sum(dram for _, dram in times)

    return {
        "qkv": gemms((d, qkv_columns(shape) * q / heads)),
        "attention": attention(board, side, chips, shape, moment, a, misses),
        "fc": gemms(
            (query(shape), d * f / heads),
            (d, (shape["ff_matrices"] - 1) * shape["intermediate"] * f / heads),
            (shape["intermediate"], d * f / heads),
        ),
        "lm_head": gemms((d, shape["vocab"] * f / heads)),
    }


def units(shape: Shape, tokens: int) -> dict[str, float]:
    """Return the bytes of one head (attention: KV group) over all layers."""
    d, element = shape["hidden"], shape["element_bytes"]
    ff = shape["ff_matrices"] * d * shape["intermediate"]
    fc = shape["layers"] * (query(shape) * d + ff) + d * shape["vocab"]
    return {
        "qkv": shape["layers"] * d * qkv_columns(shape) * element / shape["heads"],
        "attention": shape["layers"] * 2 * shape["head_dim"] * tokens * element,
        "fc": fc * element / shape["heads"],
    }


def counts(shape: Shape) -> Mapping:
    return shape["heads"], shape["kv_heads"], shape["heads"]


def other(shape: Shape, mapping: Mapping) -> Mapping:
    return shape["heads"] - mapping[0], shape["kv_heads"] - mapping[1], shape["heads"] - mapping[2]


def bytes_of(shape: Shape, mapping: Mapping, tokens: int) -> float:
    return sum(n * unit for n, unit in zip(mapping, units(shape, tokens).values(), strict=True))


def possible_mappings(board: Board, shape: Shape, moment: Moment) -> list[Mapping]:
    unit = tuple(units(shape, moment[1]).values())
    hbm, lpddr = board["hbm"]["capacity_bytes"], board["lpddr"]["capacity_bytes"]

    def size(mapping: Mapping) -> float:
        return mapping[0] * unit[0] + mapping[1] * unit[1] + mapping[2] * unit[2]

    every = itertools.product(*(range(n + 1) for n in counts(shape)))
    return [m for m in every if size(m) <= hbm and size(other(shape, m)) <= lpddr]


def split_plan(
    board: Board, shape: Shape, moment: Moment, mapping: Mapping, translated: bool
) -> dict[str, float]:
    """Return an iteration with heads on both sides."""
    times, busy = [], []
    for side, heads in (("hbm", mapping), ("lpddr", other(shape, mapping))):
        chips = board[side]["chips"]
        reach = board["page_bytes"] * board["tlb_entries"] * chips
        misses = translated and bytes_of(shape, heads, moment[1]) > reach
        times.append(side_times(board, board[side], chips, shape, moment, heads, misses))
        busy.append(totals(shape, times[-1]))
    part = {name: max(side[name][0] for side in times) for name in times[0]}
    batch, element = moment[0], shape["element_bytes"]
    link = board["link_bytes_per_ns"]
    lm_head = 0.0
    if shape["vocab"]:
        moved = batch * (shape["hidden"] + shape["vocab"]) * element
        lm_head = part["lm_head"] + moved / link + board["launch_ns"]
    exchange = batch * (6 * shape["hidden"] + shape["intermediate"]) * element / link
    launch = board["kernels"] * board["launch_ns"]
    layer = part["qkv"] + part["attention"] + part["fc"] + exchange + launch
    return {
        "qkv_ns": part["qkv"],
        "attention_ns": part["attention"],
        "fc_ns": part["fc"],
        "exchange_ns": exchange,
        "launch_ns": launch,
        "lm_head_ns": lm_head,
        "on_demand_ns": 0.0,
        "hbm_busy_ns": busy[0][0],
        "lpddr_busy_ns": busy[1][0],
        "lpddr_dram_ns": busy[1][1],
        "iteration_ns": shape["layers"] * layer + lm_head,
    }


def totals(shape: Shape, times: dict[str, tuple[float, float]]) -> tuple[float, float]:
    """Return (busy, DRAM) of a side in an iteration."""

    def total(which: int) -> float:
        layer = times["qkv"][which] + times["attention"][which] + times["fc"][which]
        return shape["layers"] * layer + times["lm_head"][which]

    return total(0), total(1)


def layers_plan(board: Board, shape: Shape, moment: Moment, mapping: Mapping, translated: bool) -> float:
    """Return the length of an iteration with complete layers' sublayers on one side or the other."""
    layers = shape["layers"]
    in_hbm = sum(
        n / layers * all_of * unit
        for n, all_of, unit in zip(mapping, counts(shape), units(shape, moment[1]).values(), strict=True)
    )
    total = bytes_of(shape, counts(shape), moment[1])
    time = 0.0
    for side, here, ns in (
        ("hbm", in_hbm, mapping),
        ("lpddr", total - in_hbm, tuple(layers - n for n in mapping)),
    ):
        chips = board[side]["chips"]
        misses = translated and here > board["page_bytes"] * board["tlb_entries"] * chips
        times = side_times(board, board[side], chips, shape, moment, counts(shape), misses)
        time += sum(n * times[name][0] for n, name in zip(ns, ("qkv", "attention", "fc"), strict=True))
        time += ns[2] / layers * times["lm_head"][0]
    batch, element, link = moment[0], shape["element_bytes"], board["link_bytes_per_ns"]
    time += layers * batch * (6 * shape["hidden"] + shape["intermediate"]) * element / link
    time += layers * board["kernels"] * board["launch_ns"]
    if shape["vocab"]:
        time += batch * (shape["hidden"] + shape["vocab"]) * element / link + board["launch_ns"]
    return time


def alone(board: Board, side: Side, shape: Shape, moment: Moment) -> float:
    """Return the length of an iteration with everything in one memory, using the chips of both sides."""
    chips = board["hbm"]["chips"] + board["lpddr"]["chips"]
    busy, _ = totals(shape, side_times(board, side, chips, shape, moment, counts(shape), False))
    launches = shape["layers"] * board["kernels"] + (1 if shape["vocab"] else 0)
    return busy + launches * board["launch_ns"]


def head_cost(board: Board, shape: Shape, batch: int, side: str, sublayer: str) -> float:
    """Return Algorithm 1's time of a head at a side, in units of a head's operations."""
    here = board[side]
    cores = board["cores"] * here["chips"]
    rate = bandwidth(board, here)
    if sublayer == "attention":
        peak = cores * board["mv_rows"] * board["mv_width"] / board["cycle_ns"]
        used = 1 if board["reread_kv"] else shape["heads"] // shape["kv_heads"]
        alpha = max(1.0, peak / rate / (used / shape["element_bytes"]))
    else:
        peak = cores * board["mm_size"] ** 2 / board["cycle_ns"]
        alpha = max(array_cycles(board, batch) / batch, peak / rate / (batch / shape["element_bytes"]))
    return alpha / peak


def times_of_all(board: Board, shape: Shape, moment: Moment) -> dict[Mapping, float]:
    """Return the length of an iteration, no TLB misses, with every mapping that fits."""
    q_all, a_all, f_all = counts(shape)
    alone_there = (
        [split_plan(board, shape, moment, (q, 0, 0), False) for q in range(q_all + 1)],
        [split_plan(board, shape, moment, (0, a, 0), False) for a in range(a_all + 1)],
        [split_plan(board, shape, moment, (0, 0, f), False) for f in range(f_all + 1)],
    )
    # A part of an iteration depends on its own sublayer's heads and on nothing else.
    nothing = alone_there[0][0]["iteration_ns"]
    more = [[plan["iteration_ns"] - nothing for plan in plans] for plans in alone_there]
    return {
        (q, a, f): nothing + more[0][q] + more[1][a] + more[2][f]
        for q, a, f in possible_mappings(board, shape, moment)
    }


def is_greedy(board: Board, shape: Shape, moment: Moment, mapping: Mapping) -> bool:
    """Return whether each of Algorithm 1's choices is the cheapest that leaves a way to place the rest."""
    possible = possible_mappings(board, shape, moment)
    for place, name in ((1, "attention"), (0, "qkv"), (2, "fc")):
        at_hbm = head_cost(board, shape, moment[0], "hbm", name)
        at_lpddr = head_cost(board, shape, moment[0], "lpddr", name)
        all_of = counts(shape)[place]
        cost = {m[place]: max(m[place] * at_hbm, (all_of - m[place]) * at_lpddr) for m in possible}
        chosen = mapping[place]
        if chosen not in cost or cost[chosen] > min(cost.values()) * (1 + 1e-12):
            return False
        possible = [m for m in possible if m[place] == chosen]
    return True


def random_case(seed: int) -> tuple[Board, Shape, Moment]:
    """Return a small model and a board that may or may not have room for it, with random parameters."""
    rng = np.random.default_rng(seed)

    def one_of(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    def between(low: float, high: float) -> float:
        return float(rng.uniform(low, high))

    kv_heads = int(rng.integers(1, 6))
    shape = {
        "layers": int(rng.integers(1, 6)),
        "hidden": int(rng.integers(1, 700)),
        "heads": kv_heads * int(rng.integers(1, 4)),
        "kv_heads": kv_heads,
        "head_dim": one_of(16, 80, 128, 200),
        "intermediate": int(rng.integers(1, 1500)),
        "ff_matrices": one_of(2, 3),
        "vocab": one_of(0, 1, 3000),
        "element_bytes": one_of(1, 2),
    }
    rows = one_of(4, 32)
    lengths = rng.integers(1, 3000, int(rng.integers(1, 200)))
    moment = (len(lengths), int(lengths.sum()), int((-(-lengths // rows)).sum()))
    size = bytes_of(shape, counts(shape), moment[1])

    def memory(least: float, most: float, speed: float) -> dict[str, Any]:
        return {
            "capacity_bytes": size * between(least, most),
            "bytes_per_ns": speed * between(0.5, 2),
            "latency_ns": between(0, 100),
            "chips": one_of(1, 1, 2),
        }

    board = {
        "hbm": memory(0.05, 1.0, 500),
        "lpddr": memory(0.2, 1.5, 100),
        "link_bytes_per_ns": between(10, 1000),
        "cores": one_of(1, 3, 4),
        "cycle_ns": between(0.3, 2),
        "mm_size": one_of(16, 128),
        "mv_rows": rows,
        "mv_width": one_of(64, 128),
        "vector_width": one_of(8, 128),
        "spm_bytes": one_of(1000.0, 1e5, 1e7),
        "launch_ns": between(0, 2000),
        "kernels": one_of(4, 5),
        "page_bytes": one_of(4096.0, 65536.0),
        "tlb_entries": one_of(8, 100, 1000),
        "tlb_miss_ns": between(0, 500),
        "tlb_misses_at_once": one_of(1, 8),
        "dram_efficiency": between(0.3, 1),
        "weight_load": one_of("before", "behind"),
        "reread_kv": one_of(True, False),
        "hierarchical_overlap": between(0, 1),
        "hbm_devices": one_of(1, 8),
        "hbm_barrier_ns": between(0, 2000),
    }
    return board, shape, moment
