"""Iterations on a board with two memories: how a policy maps and runs them; and the paper's requests."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from laminabench import _sim
from laminabench.catalog.hardware import GB
from laminabench.catalog.models import ModelShape
from laminabench.systems.modelled.h2m2.boards import NS, Board
from laminabench.systems.modelled.h2m2.timing import POLICIES, shape_of
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.errors import UserError
from laminabench.util.suggest import nearest

ITERATIONS, BATCH, LONGEST = 128, 32, 2048


class IterationLoad(NamedTuple):
    """The work of an iteration."""

    batch: int
    kv_tokens: int  # that its requests read, each with its new one
    kv_rows: int  # how often these fill a matrix-vector unit's rows, request by request


class Mapping(NamedTuple):
    """A mapping of heads to the HBM side (of attention: KV groups), or of entire layers."""

    qkv: int
    attention: int
    fc: int
    whole_layers: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """An iteration as a policy runs it; the parts are of one layer but where noted."""

    mapping: Mapping
    layers: int
    qkv_s: float  # the slower side's
    attention_s: float
    fc_s: float
    exchange_s: float  # activations between the sides
    launch_s: float  # launches and barriers, or communication between devices
    lm_head_s: float  # once an iteration
    on_demand_s: float  # once an iteration: data that is fetched to where it is computed on
    hbm_busy_s: float  # of the whole iteration, each side computing or reading
    lpddr_busy_s: float
    lpddr_dram_s: float  # of the whole iteration: what LPDDR's bandwidth is in use for
    iteration_s: float
    hbm_bytes: dict[str, float]  # qkv, attention, fc


def load_of(lengths: Sequence[int], board: Board) -> IterationLoad:
    """Return the load of requests that read so many KV tokens each."""
    return IterationLoad(len(lengths), sum(lengths), sum(-(-length // board.mv_rows) for length in lengths))


def uniform(batch: int, length: int, board: Board) -> IterationLoad:
    """Return the load of so many requests of one length, as the paper measures."""
    return IterationLoad(batch, batch * length, batch * -(-length // board.mv_rows))


def footprint(model: ModelShape, kv_tokens: int, *, lm_head: bool = False) -> dict[str, float]:
    """Return the bytes of the full model and its KV by sublayer; an LM head counts to fc."""
    shape = shape_of(model, lm_head=lm_head)
    unit: dict[str, float] = _sim.h2m2_footprint(shape=shape, kv_tokens=kv_tokens)
    counts = {"qkv": model.heads, "attention": model.kv_heads, "fc": model.heads}
    return {name: unit[name] * count for name, count in counts.items()}


def plan(
    board: Board,
    model: ModelShape,
    policy: str,
    load: IterationLoad,
    *,
    translated: bool = False,
    shares: tuple[float, float] | None = None,
    lm_head: bool = False,
) -> Plan:
    """Return the iteration as `policy` runs it; raise a UserError if the footprint does not fit.

    `translated` adds TLB misses to the policies that map. FlexGen's `shares` of weights and of KV in HBM are
    solved for this load where none are given.
    """
    if policy not in POLICIES:
        raise UserError("mapping-unknown", f"no mapping policy named {policy!r}; {nearest(policy, POLICIES)}")
    _require_work(load)
    if policy == "flexgen" and shares is None:
        shares = flexgen_shares(board, model, load, lm_head=lm_head)
    result = _planned(board, model, policy, load, lm_head, translated, shares)
    if result is None:
        raise UserError("mapping-out-of-memory", _no_room(board, model, policy, load, lm_head))
    if policy == "hierarchical":  # which computes all at HBM and holds there what it can
        size = sum(footprint(model, load.kv_tokens, lm_head=lm_head).values())
        share = min(1.0, board.hbm.capacity_bytes / size)
        in_hbm = {name: part * share for name, part in result.hbm_bytes.items()}
        return replace(result, hbm_bytes=in_hbm)
    return result


def time_of(
    board: Board,
    model: ModelShape,
    mapping: Mapping,
    load: IterationLoad,
    *,
    translated: bool = False,
    lm_head: bool = False,
) -> Plan:
    """Return the iteration with this mapping, whether the footprint fits it or not."""
    _require_work(load)
    native = _sim.h2m2_time_of(
        board=board.native(),
        shape=shape_of(model, lm_head=lm_head),
        mapping=mapping,
        moment=load,
        translated=translated,
    )
    return _read(model, footprint(model, load.kv_tokens, lm_head=lm_head), **native)


def flexgen_shares(
    board: Board, model: ModelShape, load: IterationLoad, *, lm_head: bool = False
) -> tuple[float, float]:
    """Return the shares of weights and KV in HBM that FlexGen's linear programme chooses for this load.

    Each side's operations at its units' peak rate, and each side's bytes within its memory: bandwidths it
    does not see, and qkv and fc are both weights. As many query heads as a group has use each byte of KV.
    """
    from scipy.optimize import linprog

    bytes_by_sublayer = footprint(model, load.kv_tokens, lm_head=lm_head)
    weights = bytes_by_sublayer["qkv"] + bytes_by_sublayer["fc"]
    kv = bytes_by_sublayer["attention"]
    per_core = board.clock_hz * board.cores
    weights_s = weights * load.batch / (per_core * board.mm_size**2)
    kv_s = kv * model.group / (per_core * board.mv_rows * board.mv_width)
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
    if not solved.success:
        raise UserError("mapping-out-of-memory", _no_room(board, model, "flexgen", load, lm_head))
    return float(solved.x[0]), float(solved.x[1])


def _planned(
    board: Board,
    model: ModelShape,
    policy: str,
    load: IterationLoad,
    lm_head: bool,
    translated: bool = False,
    shares: tuple[float, float] | None = None,
) -> Plan | None:
    weights, kv = shares or (0.0, 0.0)
    native = _sim.h2m2_plan(
        board=board.native(),
        shape=shape_of(model, lm_head=lm_head),
        policy=policy,
        moment=load,
        translated=translated,
        weights_share=weights,
        kv_share=kv,
    )
    if native is None:
        return None
    return _read(model, footprint(model, load.kv_tokens, lm_head=lm_head), **native)


def _read(
    model: ModelShape,
    by_sublayer: dict[str, float],
    *,
    mapping: tuple[int, int, int, bool],
    **times_ns: float,
) -> Plan:
    qkv, attention, fc, whole_layers = mapping
    heads, groups = (model.layers, model.layers) if whole_layers else (model.heads, model.kv_heads)
    shares = {"qkv": qkv / heads, "attention": attention / groups, "fc": fc / heads}
    return Plan(
        mapping=Mapping(*mapping),
        layers=model.layers,
        hbm_bytes={name: by_sublayer[name] * share for name, share in shares.items()},
        **{f"{name.removesuffix('_ns')}_s": value * NS for name, value in times_ns.items()},
    )


def _require_work(load: IterationLoad) -> None:
    if load.batch < 1 or load.kv_tokens < 0:
        raise UserError(
            "mapping-empty-iteration",
            f"no iteration has {load.batch} requests and {load.kv_tokens} KV tokens",
        )


def _no_room(board: Board, model: ModelShape, policy: str, load: IterationLoad, lm_head: bool) -> str:
    """Say what does not fit, and what would: a smaller batch, or shorter requests."""

    def fits(batch: int, length: int) -> bool:
        return _planned(board, model, policy, uniform(batch, length, board), lm_head) is not None

    length = -(-load.kv_tokens // load.batch)
    size = sum(footprint(model, load.kv_tokens, lm_head=lm_head).values())
    room: float = _sim.h2m2_capacity(board=board.native(), shape=shape_of(model), policy=policy)
    what = (
        f"{model.name} in INT8 with {load.batch} requests of {length} tokens takes {size / GB:.1f} GB, and "
        f"{policy} on board {board.name} has {room / GB:.1f} GB"
    )
    batch = _most(lambda batch: fits(batch, length), load.batch)
    longest = _most(lambda length: fits(load.batch, length), length)
    possible = [
        *([f"{batch} requests of that length"] if batch else []),
        *([f"{longest} tokens each at that batch"] if longest else []),
    ]
    return f"{what}: {' or '.join(possible)} would fit" if possible else f"{what}: not even one token fits"


def _most(fits: Callable[[int], bool], too_many: int) -> int:
    """Return the largest number below `too_many` that fits, by halving; 0 if not even 1 does."""
    fine, wrong = 0, too_many
    while wrong - fine > 1:
        middle = (fine + wrong) // 2
        fine, wrong = (middle, wrong) if fits(middle) else (fine, middle)
    return fine


def dynamic_trace(seed: int, iterations: int = ITERATIONS, batch: int = BATCH) -> Trace:
    """Return the paper's dynamic scenario: a batch that stays full while its requests end at random.

    Requests have 1 to 2048 tokens, each as likely, and one in 128 ends with each iteration.
    One that ends is replaced at once. Replayed saturated, first come, first served, with `max_num_seqs` =
    `batch`, it is exactly this many iterations of a full batch: running requests end with the last.
    """
    rng = np.random.default_rng(seed)
    prompts: list[int] = []
    outputs: list[int] = []
    # The iteration with which each place in the batch is free for the next row.
    free = [0] * batch
    while (begins := free[0]) < iterations:
        lasts = min(int(rng.geometric(1 / ITERATIONS)), iterations - begins)
        prompts.append(int(rng.integers(1, LONGEST, endpoint=True)))
        outputs.append(lasts)
        heapq.heapreplace(free, begins + lasts)
    return Trace(
        np.zeros(len(prompts)),
        np.array(prompts, np.int32),
        np.array(outputs, np.int32),
        TraceMeta(f"h2m2-dynamic-{seed}", origin="drawn from H2M2's distributions", has_arrivals=False),
    )
