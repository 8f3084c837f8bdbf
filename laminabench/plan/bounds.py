"""How good a candidate could be at best, from its cost tables and sums over the trace, without a replay.

docs/plan.md derives every line of this; tests hold it to what replays come to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from laminabench.analysis.window import FEWEST_MOMENTS
from laminabench.catalog.boards import Board
from laminabench.catalog.models import ModelShape
from laminabench.plan.demand import LEFT_OUT, Demand
from laminabench.sim.spec import BoardTiming, Float64, Spec, Timing, shape_of

# Tables are rounded to ticks, layer by layer: far less than this.
ROUNDING = 1 - 1e-6
# Each starts from a better idea of the batch; all are bounds, and the third adds next to nothing.
LOOKS = 3


@dataclass(frozen=True, slots=True)
class Bound:
    """No replay has a higher throughput, or a lower 99th percentile of TBT."""

    tokens_per_s: float
    tbt_p99_s: float


class Line(NamedTuple):
    """Below a table everywhere: base + per_request B, for every batch of B requests."""

    base: float
    per_request: float

    def at(self, requests: float) -> float:
        return self.base + self.per_request * requests


@dataclass(frozen=True, slots=True)
class Room:
    """The memory of a candidate as admission sees it."""

    pools: int
    pool_tokens: int
    most_requests: int

    @property
    def tokens(self) -> int:
        return self.pools * self.pool_tokens

    def running(self, demand: Demand) -> int:
        """What is charged for all who run at once, at most: there are only so many of them."""
        return min(self.tokens, self.most_requests * demand.longest)


def room_of(spec: Spec) -> Room:
    """Whole blocks only; of all copies of a deployment together."""
    whole = spec.tokens_per_pool // spec.block_tokens * spec.block_tokens
    return Room(spec.copies * spec.pools, whole, spec.copies * spec.max_requests)


def tables_of(spec: Spec, most: int) -> Tables | None:
    """Of a deployment of either kind; None where there is nothing to bound its times by."""
    if isinstance(spec.timing, BoardTiming):
        return tables_of_boards(spec, spec.timing, most)
    return tables_of_costs(spec, spec.timing, most)


def bound(spec: Spec, demand: Demand, room: Room) -> Bound:
    """Of a saturated replay, in its steady window or in the whole run if that is next to nothing."""
    most = min(room.most_requests, demand.can_run(room.tokens))
    tables = tables_of(spec, most)
    if tables is None:
        return Bound(float("inf"), 0.0)
    cycles = max(demand.mean_charge(room.running(demand)) / room.tokens, 1 / room.most_requests)
    per_token_s = least_seconds(tables, cycles, 1.0, demand.mean_read(room.running(demand)))
    return Bound(1 / (per_token_s * ROUNDING), _least_p99(tables, demand, room, most) * ROUNDING)


def bound_of_arrivals(spec: Spec, demand: Demand, room: Room) -> Bound:
    """Of an open replay that keeps up: no more than comes, and no faster than so much work allows."""
    most = min(room.most_requests, demand.can_run(room.tokens))
    tables = tables_of(spec, most)
    rate = demand.tokens / demand.span_s if demand.span_s > 0 else float("inf")
    if tables is None:
        return Bound(rate, 0.0)
    return Bound(rate, _least_p99_of_arrivals(tables, demand, room, most) * ROUNDING)


def falls_behind(spec: Spec, demand: Demand, room: Room, waiting_s: float) -> bool:
    """Whether an open replay cannot have let 99 of 100 requests in so soon: there is more work than time.

    What was let in and is not done yet holds memory, so it is not much.
    """
    tables = tables_of(spec, min(room.most_requests, demand.can_run(room.tokens)))
    if tables is None:
        return False
    late_tokens, late_charged = demand.late
    running = room.running(demand)
    tokens = demand.tokens - late_tokens - demand.missing_tokens.most(running)
    unread = late_charged + demand.missing_charged.most(running)
    charged, read = demand.charged - unread, demand.read - unread
    if tokens <= 0 or charged <= 0:
        return False
    cycles = max(charged / room.tokens, tokens / room.most_requests)
    needed = least_seconds(tables, cycles, tokens, max(read, 0.0)) * ROUNDING
    return needed > demand.span_s + waiting_s


def least_seconds(tables: Tables, cycles: float, tokens: float, read: float) -> float:
    """In which at least so many cycles can make so many tokens that read so many KV tokens."""
    mean = tokens / cycles

    def spent(table: Float64, reading: float) -> float:
        line = below(table, mean, through_zero=True)
        return line.base * cycles + line.per_request * tokens + reading

    reading = tables.per_token * read
    chains = spent(tables.chain, reading) / tables.batches
    attention = spent(tables.attention, reading)
    model = spent(tables.model, 0.0) / tables.replicas
    # A cycle begins when the first batch of the one before has ended.
    return max(chains, attention, model, cycles * float(tables.chain.min()))


def below(table: Float64, at: float, *, through_zero: bool = False) -> Line:
    """A line below the table (its row 0 is a batch of 1), as high as one can be near `at`.

    `through_zero`: its base is not negative, so that more iterations for the same tokens never take less.
    """
    requests = np.arange(1, len(table) + 1)
    i = min(max(round(at) - 1, 1), len(table) - 2)
    slope = max(0.0, float(table[i + 1] - table[i - 1]) / 2) if len(table) > 2 else 0.0
    base = float((table - slope * requests).min())
    if base < 0 and through_zero:
        return Line(0.0, float((table / requests).min()))
    return Line(base, slope)


def _least_p99(tables: Tables, demand: Demand, room: Room, most: int) -> float:
    """At least 99 of 100 gaps are no longer than the 99th percentile. The cycles that they are in were as
    full as admission makes them, so their mean size, and mean of KV tokens, can be read off the trace.
    """
    alone = float(tables.chain.min())
    made = demand.tokens - demand.missing_tokens.most(room.running(demand))
    # What a cycle is full to, or it has as many requests as it may.
    full = room.pools * (room.pool_tokens - demand.longest + 1)
    # The last cycle of the window may be less full; first tokens have no gap.
    gaps = (1 - LEFT_OUT) * (made - demand.requests - most) - most
    if made < FEWEST_MOMENTS * most or gaps <= 0 or full <= 0:
        return alone
    taken, all_taken, pending = demand.taken(gaps, full, room.most_requests)
    if tables.batches == 1:
        pending = 0.0  # who is let in joins at once
    size = gaps / (taken + pending)
    read = max(0.0, demand.read - demand.largest_charged(demand.tokens - gaps)) / (all_taken + pending)
    reading = tables.per_token * read
    if tables.batches == 1:
        return max(alone, below(tables.chain, size).at(size) + reading)
    # Between two tokens the workers serve all other batches too, but for the layers at both ends.
    layers = tables.layers
    attention = below(tables.attention, size, through_zero=True).at(size) + reading
    model = below(tables.mid, size, through_zero=True).at(size) * max(0, layers - 3) / tables.replicas
    return max(alone, attention * (layers - 1) / layers, model)


def _least_p99_of_arrivals(tables: Tables, demand: Demand, room: Room, most: int) -> float:
    """The tokens that are made while requests come fill that time: the longer an iteration takes, the more
    of them it makes, and so the longer it takes. A mean y solves y = base + load y.
    """
    least_s = float(tables.chain.min())
    missing = demand.missing_tokens.most(room.running(demand))
    made = demand.tokens - demand.late[0] - demand.last_tokens - missing
    gaps = (1 - LEFT_OUT) * (made - demand.requests)
    if made < FEWEST_MOMENTS * most or gaps <= 0:
        return least_s
    time_s = tables.batches * demand.span_s
    read = max(0.0, demand.read - demand.largest_charged(demand.tokens - gaps))
    for _ in range(LOOKS):
        line = below(tables.chain, gaps * least_s / time_s, through_zero=True)
        load = (line.per_request * gaps + tables.per_token * read) / time_s
        if load >= 1:
            return float("inf")
        least_s = max(least_s, line.base / (1 - load))
    return least_s


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
    matrices = [(model.layers, gemm.n * gemm.k) for gemm in model.layer_gemms(1)]
    for times, elements in [*matrices, (1, model.vocab * model.hidden)]:
        computing = elements / board.mm_size**2 / cores * load / board.clock_hz
        total += times * np.maximum(computing, elements * width / bandwidth)
    return total


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
