"""Copies of a deployment side by side: requests dealt to them in turn, their outcomes put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from laminabench.errors import UserError
from laminabench.sim.outcome import Columns, Outcome
from laminabench.sim.spec import Offered, Priority
from laminabench.traces.table import Trace


class Share(msgspec.Struct, frozen=True):
    """What one copy gets: every so-many-th request, as a load balancer in front would deal them."""

    copy: int
    trace: Trace
    offered: Offered
    rows: NDArray[np.int64]  # of the whole trace


def deal(trace: Trace, offered: Offered, copies: int) -> list[Share]:
    """The shares of as many copies as there are requests for; arrivals keep their times.

    Closed: concurrency is split as evenly as it goes, the first copies have one more.
    """
    if offered.mode == "closed" and offered.concurrency < copies:
        raise UserError(
            "deployment-too-few-requests",
            f"--concurrency {offered.concurrency} would leave some of the {copies} boards without requests; "
            f"give at least {copies}",
        )
    shares = []
    for copy in range(min(copies, len(trace))):
        rows = np.arange(copy, len(trace), copies)
        # take() would let the first of them arrive at 0 s.
        taken = replace(trace.take(rows), arrival_s=trace.arrival_s[rows])
        each = offered.concurrency // copies + (copy < offered.concurrency % copies)
        own = replace(offered, concurrency=each, priority=_of_copy(offered.priority, copy, copies))
        shares.append(Share(copy, taken, own, rows))
    return shares


def merge(shares: Sequence[Share], outcomes: Sequence[Outcome], copies: int) -> Outcome:
    """One outcome of all: requests in the trace's order, iterations in that of their starts.

    A copy's batches come after those of the copies before it, and so do its workers. The queue is empty when
    the first copy's is: from then on that one has less to do than it could.
    """
    batches = 1 + max(int(some.iterations["batch"].max(initial=0)) for some in outcomes)
    replicas = len(outcomes[0].replica_busy_s)
    both = list(zip(shares, outcomes, strict=True))
    iterations = [_moved(some.iterations, share.copy * batches) for share, some in both]
    order = np.argsort(np.concatenate([each["start_s"] for each in iterations]), kind="stable")
    memories = [some.memory for some in outcomes if some.memory is not None]
    busy = np.zeros(copies * replicas)
    stints, timelines = [], []
    for share, some in both:
        busy[share.copy * replicas : (share.copy + 1) * replicas] = some.replica_busy_s
        own = _moved(some.stints, share.copy * batches)
        stints.append({**own, "request": share.rows[some.stints["request"]]})
        timelines.append(_moved(_moved(some.timeline, share.copy * batches), share.copy * replicas, "worker"))
    return Outcome(
        requests=_requests(shares, outcomes, batches),
        iterations=_joined(iterations, order),
        stints=_joined(stints),
        timeline=_joined(timelines),
        replica_busy_s=busy,
        attention_busy_s=sum(some.attention_busy_s for some in outcomes),
        end_s=max(some.end_s for some in outcomes),
        queue_empty_s=min(some.queue_empty_s for some in outcomes),
        peak_kv_tokens=sum(some.peak_kv_tokens for some in outcomes),
        kv_capacity_tokens=copies * outcomes[0].kv_capacity_tokens,
        memory=_joined(memories, order) if memories else None,
    )


def _of_copy(priority: Priority | None, copy: int, copies: int) -> Priority | None:
    """The whole trace's policy, asked about a row of the copy's."""
    if priority is None:
        return None
    return lambda request: priority(request * copies + copy)


def _requests(shares: Sequence[Share], outcomes: Sequence[Outcome], batches: int) -> Columns:
    count = sum(len(share.rows) for share in shares)
    whole: Columns = {name: np.empty(count, column.dtype) for name, column in outcomes[0].requests.items()}
    for share, some in zip(shares, outcomes, strict=True):
        for name, column in _moved(some.requests, share.copy * batches).items():
            whole[name][share.rows] = column
    return whole


def _moved(columns: Columns, by: int, name: str = "batch") -> Columns:
    """Numbers of batches or workers among all copies'; what is negative is nobody's number."""
    numbers: NDArray[Any] = columns[name]
    return {**columns, name: np.where(numbers >= 0, numbers + by, numbers).astype(numbers.dtype)}


def _joined(tables: Sequence[Columns], order: NDArray[np.int64] | None = None) -> Columns:
    whole = {name: np.concatenate([each[name] for each in tables]) for name in tables[0]}
    return whole if order is None else {name: column[order] for name, column in whole.items()}
