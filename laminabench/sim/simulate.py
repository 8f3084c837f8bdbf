"""Run a trace through the native simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from laminabench.errors import UserError
from laminabench.sim.copies import deal, merge
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import TICKS_PER_S, Offered, Priority, Spec, ticks
from laminabench.traces.table import Trace

__all__ = ["Offered", "Priority", "simulate"]

# 64-bit ticks of 0.1 ns last for 29 years.
MOST_SECONDS = 25 * 365 * 86400.0


def simulate(
    trace: Trace,
    spec: Spec,
    offered: Offered,
    *,
    record_s: tuple[float, float] = (0.0, 0.0),
    progress: Callable[[int], None] | None = None,
    check: bool = False,
) -> Outcome:
    """The trace replayed on the deployment; `record_s` keeps the pieces of work that begin in that window."""
    if trace.arrival_s[-1] > MOST_SECONDS:
        raise UserError(
            "trace-too-long", f"{trace.meta.name} spans more than 25 years; the simulator's clock ends there"
        )
    if spec.copies == 1:
        return _one(trace, spec, offered, record_s, progress, check=check)
    shares, outcomes = deal(trace, offered, spec.copies), []
    before = 0
    for share in shares:
        further = _counting_on(progress, before)
        outcomes.append(_one(share.trace, spec, share.offered, record_s, further, check=check))
        before += len(share.rows)
    return merge(shares, outcomes, spec.copies)


def _counting_on(progress: Callable[[int], None] | None, before: int) -> Callable[[int], None] | None:
    """Told of one copy's requests, tells of those of the copies before it too."""
    return None if progress is None else lambda done: progress(before + done)


def _one(
    trace: Trace,
    spec: Spec,
    offered: Offered,
    record_s: tuple[float, float],
    progress: Callable[[int], None] | None,
    *,
    check: bool,
) -> Outcome:
    """On one copy of the deployment."""
    from laminabench import _sim

    no_ids = np.zeros(0, np.int64)
    share = spec.prefix_sharing and trace.prefix_blocks is not None
    try:
        tables: dict[str, Any] = _sim.run(
            arrival=ticks(trace.arrival_s),
            prompt=trace.prompt_tokens,
            output=trace.output_tokens,
            prefix_offsets=trace.prefix_blocks.offsets if share and trace.prefix_blocks else no_ids,
            prefix_ids=trace.prefix_blocks.ids if share and trace.prefix_blocks else no_ids,
            prefix_block_tokens=trace.meta.block_tokens,
            mode=offered.mode,
            concurrency=offered.concurrency,
            batches=spec.batches,
            pipelining=spec.pipelining,
            layers=spec.layers,
            pools=spec.pools,
            tokens_per_pool=spec.tokens_per_pool,
            block_tokens=spec.block_tokens,
            admission=spec.admission,
            max_requests=spec.max_requests,
            prompt_budget=spec.prompt_budget,
            costs=spec.timing.tables(),
            priority=offered.priority,
            record_from=round(record_s[0] * TICKS_PER_S),
            record_to=round(record_s[1] * TICKS_PER_S),
            progress=progress,
            check=check,
        )
    except OverflowError as error:
        raise UserError(
            "costs-impossible-time",
            f"{error}, and none takes more than an hour; check the board's parameters",
        ) from None
    return Outcome(**tables)
