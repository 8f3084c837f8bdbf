"""Bounds on a candidate's performance, from cost tables and sums over the trace, without a replay.

docs/plan.md derives every line of this; tests hold it to what replays come to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from laminabench.analysis.window import FEWEST_MOMENTS
from laminabench.sim.spec import Float64, Mode, PromptPool, Spec, Timing
from laminabench.workflows.plan.demand import Demand
from laminabench.workflows.plan.prompt_demand import LEFT_OUT, PromptDemand, Work
from laminabench.workflows.plan.tables import Line, PromptTables, Tables, below, tables_of, tables_of_costs

# Tables are rounded to ticks, layer by layer: far less than this.
ROUNDING = 1 - 1e-6
# Each starts from a better idea of the batch; all are bounds, and the third adds next to nothing.
LOOKS = 3
# Lines of prompts that are tried: near so many rows, and near all that an iteration has.
NEAR_ROWS = (64, 256, 1024)
Why = Literal["does_not_fit", "too_small", "falls_behind"]


@dataclass(frozen=True, slots=True)
class Bound:
    """Bounds of a replay: no throughput is higher, and no 99th percentile of TBT or TTFT lower."""

    tokens_per_s: float
    tbt_p99_s: float
    ttft_p99_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Room:
    """The memory of a candidate as admission sees it."""

    pools: int
    pool_tokens: int
    most_requests: int
    prompts_begun: int = 0  # at once, which do not hold yet what they will

    @property
    def tokens(self) -> int:
        return self.pools * self.pool_tokens

    def running(self, demand: Demand) -> int:
        """Return the most that is charged for all running requests at once."""
        begun = self.prompts_begun * demand.longest
        return min(self.tokens + begun, self.most_requests * demand.longest)


def room_of(spec: Spec) -> Room:
    """Return the KV tokens of all copies of a deployment, in whole blocks."""
    in_blocks = spec.tokens_per_pool // spec.block_tokens * spec.block_tokens
    begun = spec.copies * spec.batches * (spec.prompt_budget > 0)
    return Room(spec.copies * spec.pools, in_blocks, spec.copies * spec.max_requests, begun)


def bound(spec: Spec, demand: Demand, room: Room) -> Bound:
    """Bound a saturated replay, in its steady window or the full run if that is next to nothing."""
    most = min(room.most_requests, demand.can_run(room.tokens))
    tables = tables_of(spec, most, demand.lengths)
    if tables is None:
        return Bound(float("inf"), 0.0)
    cycles = max(demand.mean_charge(room.running(demand)) / room.tokens, 1 / room.most_requests)
    read = demand.mean_read(room.running(demand))
    if tables.prompts is None or demand.prompts is None:
        per_token_s = least_seconds(tables, cycles, 1.0, read)
        return Bound(1 / (per_token_s * ROUNDING), _least_p99(tables, demand, room, most) * ROUNDING)
    # All that can be made, in the time that what surely is made takes.
    prompts = demand.prompts
    made = max(0.0, demand.tokens - demand.missing_tokens.most(room.running(demand)))
    work = prompts.all.without(prompts.begun(room.prompts_begun, tables.prompts.budget))
    needed = least_with_prompts(tables, cycles * made, made, read * made, work) * ROUNDING
    rate = (demand.tokens + demand.requests) / needed if needed > 0 else float("inf")
    return Bound(rate, float(tables.chain.min()) * ROUNDING)


def bound_of_arrivals(spec: Spec, demand: Demand, room: Room) -> Bound:
    """Bound an open replay that keeps up: at most the arriving load, as fast as its work allows."""
    most = min(room.most_requests, demand.can_run(room.tokens))
    tables = tables_of(spec, most, demand.lengths)
    if tables is None:
        return Bound(demand.rate, 0.0)
    ttft_s = 0.0
    if tables.prompts is not None and demand.prompts is not None:
        ttft_s = ttft_p99(tables.prompts, demand.prompts) * ROUNDING
    return Bound(demand.rate, _least_p99_of_arrivals(tables, demand, room, most) * ROUNDING, ttft_s)


def bound_with_pool(
    spec: Spec, pool: PromptPool, demand: Demand, waiting_s: float, mode: Mode
) -> Bound | Why:
    """Bound a deployment with a prompt pool, which has to keep up.

    Decoding takes the shortest iteration at least, as it may lag behind while KV waits.
    """
    engine, prompts = pool.engine, demand.prompts
    assert prompts is not None
    assert isinstance(spec.timing, Timing)
    # An engine holds a prompt, its first token, and the tokens charged for each request.
    parts = (prompts.longest.rows + 1, engine.request_tokens)
    blocks = sum(-(-tokens // engine.block_tokens) for tokens in parts)
    if blocks * engine.block_tokens > room_of(engine).pool_tokens:
        return "too_small"
    tables = tables_of_costs(spec, spec.timing, spec.max_requests, demand.lengths)
    assert isinstance(engine.timing, Timing)
    of_pool = tables_of_costs(engine, engine.timing, engine.max_requests, demand.lengths)
    assert of_pool.prompts is not None
    engines = spec.copies * engine.copies
    begun = prompts.begun(engines, of_pool.prompts.budget)
    late = (begun,) if mode == "saturate" else (begun, prompts.late)
    work = prompts.all.without(*late).times(1 / engines)
    needed_s = least_with_prompts(of_pool, 0.0, 0.0, 0.0, work) * ROUNDING
    gap_s = float(tables.chain.min()) * ROUNDING
    if mode == "saturate":
        # The window ends when the first engine's queue is empty; the others' state then is unknown.
        made = demand.tokens + demand.requests
        return Bound(made / needed_s if needed_s > 0 and engines == 1 else float("inf"), gap_s)
    if needed_s > demand.span_s + waiting_s:
        return "falls_behind"
    return Bound(demand.rate, gap_s, ttft_p99(of_pool.prompts, prompts) * ROUNDING)


def falls_behind(spec: Spec, demand: Demand, room: Room, waiting_s: float) -> bool:
    """Return whether an open replay cannot have admitted 99 of 100 requests so soon: its work takes longer.

    What was let in and is not done yet holds memory, so it is not much.
    """
    tables = tables_of(spec, min(room.most_requests, demand.can_run(room.tokens)), demand.lengths)
    if tables is None:
        return False
    late_tokens, late_kv = demand.late
    running = room.running(demand)
    missing = late_tokens + demand.missing_tokens.most(running)
    unread = late_kv + demand.missing_kv.most(running)
    tokens, read = demand.tokens - missing, demand.read - unread
    charged = demand.charged - unread - demand.request_tokens * missing
    limit_s = demand.span_s + waiting_s
    cycles = max(charged / room.tokens, tokens / room.most_requests)
    if tables.prompts is not None and demand.prompts is not None:
        prompts, share = demand.prompts, 1 / tables.copies
        work = prompts.all.without(
            prompts.late, prompts.begun(room.prompts_begun, tables.prompts.budget)
        ).times(share)
        cycles, tokens, read = max(0.0, cycles), max(0.0, share * tokens), max(0.0, share * read)
        return least_with_prompts(tables, cycles, tokens, read, work) * ROUNDING > limit_s
    if tokens <= 0 or charged <= 0:
        return False
    return least_seconds(tables, cycles, tokens, max(read, 0.0)) * ROUNDING > limit_s


def least_seconds(tables: Tables, cycles: float, tokens: float, read: float) -> float:
    """Return the least time in which so many cycles can make these tokens, which read so many KV tokens."""
    mean = tokens / cycles

    def spent(table: Float64, reading: float) -> float:
        line = below(table, mean, through_zero=True)
        return line.base * cycles + line.per_request * tokens + reading

    reading = tables.per_token * read
    chains = spent(tables.chain, reading) / tables.batches
    attention = spent(tables.attention, reading) / tables.attentions
    model = spent(tables.model, 0.0) / tables.replicas
    # A cycle begins when the first batch of the one before has ended.
    return max(chains, attention, model, cycles * float(tables.chain.min()))


def _least_p99(tables: Tables, demand: Demand, room: Room, most: int) -> float:
    """At least 99 of 100 gaps are no longer than the 99th percentile. The cycles that they are in were as
    full as admission makes them, so their mean size, and mean of KV tokens, can be read off the trace.
    """
    alone = float(tables.chain.min())
    made = demand.tokens - demand.missing_tokens.most(room.running(demand))
    # What a cycle is full to, or it has as many requests as it may.
    full = room.pools * (room.pool_tokens - demand.longest + 1)
    # The last cycle of the window may be less full; first tokens have no gap.
    gaps = (1 - LEFT_OUT) * (made - demand.firsts - most) - most
    if made < FEWEST_MOMENTS * most or gaps <= 0 or full <= 0:
        return alone
    taken, all_taken, pending = demand.taken(gaps, full, room.most_requests)
    if tables.batches == 1:
        pending = 0.0  # an admitted request joins at once
    size = gaps / (taken + pending)
    read = max(0.0, demand.read - demand.largest_read(demand.tokens - gaps)) / (all_taken + pending)
    reading = tables.per_token * read
    if tables.batches == 1:
        return max(alone, below(tables.chain, size).at(size) + reading)
    if tables.attentions > 1:
        return alone
    # Between two tokens the workers serve all other batches too, but for the layers at both ends.
    layers = tables.layers
    attention = below(tables.attention, size, through_zero=True).at(size) + reading
    model = below(tables.mid, size, through_zero=True).at(size) * max(0, layers - 3) / tables.replicas
    return max(alone, attention * (layers - 1) / layers, model)


def _least_p99_of_arrivals(tables: Tables, demand: Demand, room: Room, most: int) -> float:
    """Bound the p99 of TBT of an open replay that keeps up.

    The longer an iteration, the more tokens it makes, and so the longer it takes: its mean y = base + load y.
    """
    least_s = float(tables.chain.min())
    missing = demand.missing_tokens.most(room.running(demand))
    made = demand.tokens - demand.late[0] - demand.last_tokens - missing
    gaps = (1 - LEFT_OUT) * (made - demand.firsts)
    if made < FEWEST_MOMENTS * most or gaps <= 0:
        return least_s
    time_s = tables.copies * tables.batches * demand.span_s
    reading = tables.per_token * max(0.0, demand.read - demand.largest_read(demand.tokens - gaps))
    least_mean = _mean_at_least(tables.chain, gaps, reading, time_s, least_s)
    if tables.prompts is None or demand.prompts is None:
        return least_mean
    # What prompts take of that time, decoding cannot have.
    prompts = demand.prompts
    work = prompts.all.without(
        prompts.late, prompts.last, prompts.begun(room.prompts_begun, tables.prompts.budget)
    )
    for line in path_lines(tables.prompts, len(tables.chain)):
        left_s = time_s - line.per_request * work.rows - tables.prompts.chunks(work)
        requests = np.arange(1, len(tables.chain) + 1, dtype=np.float64)
        chain = line.base + line.per_request * requests + tables.fixed
        least = float(chain.min())
        least_mean = max(least_mean, _mean_at_least(chain, gaps, reading, left_s, least))
    return least_mean


def _mean_at_least(chain: Float64, gaps: float, reading: float, time_s: float, least_s: float) -> float:
    """Solve for y by a better line each time."""
    for _ in range(LOOKS):
        if time_s <= 0:
            return float("inf")
        line = below(chain, gaps * least_s / time_s, through_zero=True)
        load = (line.per_request * gaps + reading) / time_s
        if load >= 1:
            return float("inf")
        least_s = max(least_s, line.base / (1 - load))
    return least_s


def path_lines(prompts: PromptTables, requests: int) -> Iterator[Line]:
    """Return some points below the path: which one is best depends on the prompts."""
    for rows in {min(near, prompts.budget) for near in (*NEAR_ROWS, requests, prompts.budget)}:
        yield below(prompts.path, rows, through_zero=True)


def least_with_prompts(tables: Tables, cycles: float, tokens: float, read: float, work: Work) -> float:
    """Return the least seconds of so many cycles that make so many tokens, and compute these prompts.

    The tokens read so many KV tokens; the prompts' rows share iterations with those of the tokens.
    """
    prompts = tables.prompts
    assert prompts is not None
    rows, made = tokens + work.rows, tokens + work.prompts
    iterations = max(cycles, rows / prompts.budget)
    if iterations <= 0:
        return 0.0

    def spent(table: Float64) -> float:
        line = below(table, rows / iterations, through_zero=True)
        return line.base * iterations + line.per_request * rows

    attention = prompts.chunks(work) + tables.per_token * read
    if cycles > 0:
        line = below(tables.attention, tokens / cycles, through_zero=True)
        attention += line.base * cycles + line.per_request * tokens
    head = prompts.head * made
    host = prompts.host_fixed * iterations + prompts.host_each * made
    return max(
        (spent(prompts.path) + head + host + attention) / tables.batches,
        (spent(prompts.model) + head) / tables.replicas,
        (spent(prompts.attention) + attention) / tables.attentions,
        cycles * float(tables.chain.min()),
    )


def ttft_p99(prompts: PromptTables, demand: PromptDemand) -> float:
    """Bound TTFT as if each request had an empty cluster."""
    rows, pairs = demand.own
    chunks = np.ceil(rows / prompts.budget)
    lines = path_lines(prompts, 1)
    path = np.max([line.base * chunks + line.per_request * rows for line in lines], axis=0)
    each = path + chunks * (prompts.fixed + prompts.host_fixed + prompts.host_each) + prompts.head
    each += prompts.per_row * rows + prompts.per_pair * pairs
    return float(np.sort(each)[-(-99 * len(each) // 100) - 1])
