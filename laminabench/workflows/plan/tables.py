"""Least iteration times by requests or rows, and lines below these tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from laminabench.sim.spec import Float64, PromptTiming, Spec, Timing
from laminabench.workflows.plan.prompt_demand import Work


class Line(NamedTuple):
    """A lower bound of a table: base + per_request B, for every batch of B requests."""

    base: float
    per_request: float

    def at(self, requests: float) -> float:
        return self.base + self.per_request * requests


def below(table: Float64, at: float, *, through_zero: bool = False) -> Line:
    """Return a line below the table (its row 0 is a batch of 1), as high as one can be near `at`.

    `through_zero`: its base is not negative, so that more iterations for the same tokens never take less.
    """
    requests = np.arange(1, len(table) + 1)
    i = min(max(round(at) - 1, 1), len(table) - 2)
    slope = max(0.0, float(table[i + 1] - table[i - 1]) / 2) if len(table) > 2 else 0.0
    base = float((table - slope * requests).min())
    if base < 0 and through_zero:
        return Line(0.0, float((table / requests).min()))
    return Line(base, slope)


@dataclass(frozen=True)
class PromptTables:
    """Seconds an iteration by its rows, 1 up to the budget, all layers; none is above a later one."""

    model: Float64  # without the LM head
    attention: Float64  # of it what depends on rows alone
    path: Float64  # both, and the way to attention and back
    head: float  # the LM head, for each request that gets a token
    host_fixed: float
    host_each: float
    fixed: float  # attention of an iteration that has chunks, and of each row and pair of them
    per_row: float
    per_pair: float

    @property
    def budget(self) -> int:
        return len(self.path)

    def chunks(self, work: Work) -> float:
        """Return the attention work of chunks."""
        return self.fixed * work.rows / self.budget + self.per_row * work.rows + self.per_pair * work.pairs


@dataclass(frozen=True)
class Tables:
    """Seconds per iteration by batch size, over all layers; attention's part is separate, in KV tokens."""

    batches: int
    layers: int
    replicas: int
    mid: Float64
    model: Float64
    # As one attention: the part independent of KV tokens, all layers (without prompts' rows), and seconds per
    # KV token of the batch.
    attention: Float64
    per_token: float
    chain: Float64  # all of it, one after the other
    fixed: Float64 | float = 0.0  # part of `chain` to which rows of prompts add nothing
    prompts: PromptTables | None = None
    attentions: int = 1  # done side by side: by the attention workers as one, or by each replica
    # So many side by side, of which each has its part of all sums; of boards they are in the times.
    copies: int = 1


class Lengths(NamedTuple):
    """Least and most KV tokens of decoding requests."""

    least: float
    most: float

    def within(self, window: int) -> tuple[float, float]:
        """Return base and slope of a line that bounds a request's tokens in a window from below.

        The line is over the number of tokens that the request has.
        """
        least, most = min(self.least, window), min(self.most, window)
        slope = (most - least) / (self.most - self.least) if self.most > self.least else 0.0
        return least - slope * self.least, slope


def tables_of(spec: Spec, most: int, lengths: Lengths) -> Tables | None:
    """Return the tables of a deployment of either kind; None if there is nothing to bound its times by."""
    if isinstance(spec.timing, Timing):
        return tables_of_costs(spec, spec.timing, most, lengths)
    bounds, zero = spec.timing.least(most, spec.copies), np.zeros(most)
    return bounds and Tables(1, spec.layers, 1, zero, zero, zero, per_token=bounds[1], chain=bounds[0])


def tables_of_costs(spec: Spec, timing: Timing, most: int, lengths: Lengths) -> Tables:
    """Return the tables as the simulator reads them."""
    timing = _at_least(timing)
    layers = spec.layers
    most = min(most, spec.max_requests)
    if timing.prompts is not None:
        most = min(most, spec.prompt_budget)
    requests = np.arange(1, most + 1)

    def table(values: Float64 | float) -> Float64:
        full = np.asarray(values, np.float64)
        return full[1 : most + 1] if full.ndim else np.full(most, full)

    mid = table(timing.mid_slice)
    model = table(timing.first_slice) + (layers - 1) * mid + table(timing.last_slice)
    attention = layers * (table(timing.attention_fixed) + timing.combine)
    if timing.prompts is None:
        attention += layers * table(timing.attention_rows)
    per_kv = table(timing.attention_per_token)
    if timing.window is not None:
        (base, slope), windowed = lengths.within(timing.window), table(timing.windowed_per_token)
        per_kv = per_kv + slope * windowed
        attention += layers * base * requests * windowed / spec.pools
    per_token = layers * float(per_kv.min()) / spec.pools
    host = requests * 0.0 if timing.host_async else timing.host_fixed + requests * timing.host_per_request
    crossing = crossing_of(timing, table(timing.q_transfer), table(timing.out_transfer))
    chain = host + model + attention + layers * (crossing - table(timing.q_lead))
    workers = (spec.batches, layers, len(spec.replica_names))
    tables = Tables(
        *(*workers, mid, model, attention, per_token, chain),
        attentions=spec.batches if spec.own_attention else 1,
        copies=spec.copies,
    )
    if timing.prompts is None:
        return tables
    prompts = prompt_tables_of(spec, timing, timing.prompts, lengths)
    # With prompts no row costs less than it does alone.
    fixed = host + np.minimum.accumulate(attention[::-1])[::-1] + prompts.head * requests
    return replace(tables, chain=prompts.path[:most] + fixed, fixed=fixed, prompts=prompts)


def _at_least(timing: Timing) -> Timing:
    """Bound measured attention: reading KV at the best rate, and no time for chunks."""
    if timing.measured is None:
        return timing
    zero = np.zeros(len(timing.attention_fixed))
    if timing.prompts is None:
        least = zero + timing.measured.least_per_kv_token()
        return replace(timing, attention_fixed=zero, attention_per_token=least, window=None)
    prompts = replace(timing.prompts, fixed=0.0, per_row=0.0, per_pair=0.0)
    return replace(timing, attention_fixed=zero, attention_per_token=zero, window=None, prompts=prompts)


def prompt_tables_of(spec: Spec, timing: Timing, prompts: PromptTiming, lengths: Lengths) -> PromptTables:
    """Return the tables of prompts as the simulator reads them."""
    layers = spec.layers

    def table(values: Float64 | float) -> Float64:
        rows = len(timing.first_slice)
        return np.broadcast_to(np.asarray(values, np.float64), rows)[1 : spec.prompt_budget + 1]

    model = table(timing.first_slice) + (layers - 1) * table(timing.mid_slice) + table(timing.last_slice)
    attention = layers * table(timing.attention_rows)
    crossing = crossing_of(timing, table(timing.q_transfer), table(timing.out_transfer))
    path = model + attention + layers * (crossing - table(timing.q_lead))
    made = np.arange(1, len(prompts.head))
    # Of the longest a window has this share, and no less of any other.
    within = min(1.0, timing.window / lengths.most) if timing.window else 0.0
    waits = not timing.host_async
    return PromptTables(
        _rising(model),
        _rising(attention),
        _rising(path),
        float((prompts.head[1:] / made).min()),
        waits * timing.host_fixed,
        waits * timing.host_per_request,
        layers * prompts.fixed,
        layers * prompts.per_row / spec.pools,
        layers * (prompts.per_pair + within * prompts.windowed_per_pair) / spec.pools,
    )


def _rising(table: Float64) -> Float64:
    """Return the largest table below this one that never falls."""
    return np.minimum.accumulate(table[::-1])[::-1]


def crossing_of(timing: Timing, to: Float64, back: Float64) -> Float64:
    """Return a layer's transfers to attention and back; if streamed, only the part that is not hidden."""
    chunks, latency = timing.stream_chunks, timing.transfer_latency
    if chunks == 1:
        return to + back
    return 2 * latency + (to + back - 2 * latency) / chunks
