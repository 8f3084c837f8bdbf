"""The tables of a replay that was only seen from outside, put together from what its clients noted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.runs.status import DONE
from laminabench.sim.outcome import Columns, Outcome
from laminabench.sim.spec import Mode
from laminabench.systems.live.endpoint.records import Noted
from laminabench.systems.live.lamina.records import no_timeline
from laminabench.systems.live.tables import Tables
from laminabench.traces.table import Trace

_FILL: dict[str, Any] = {
    "due_s": np.nan,
    "sent_s": np.nan,
    "headers_s": np.nan,
    "finished_s": np.nan,
    "attempts": 0,
    "even": False,
    "error": "",
}
_TYPES = {"attempts": np.int32, "status_code": np.int32}


def outcome_of(noted: Sequence[Noted], trace: Trace, mode: Mode) -> Outcome:
    """One row a request, whichever client had it."""
    calls, unseen = _calls(noted, len(trace)), Tables(trace)
    chunks = _chunks(noted)
    status, ended_s = calls.pop("status").astype(np.int8), calls.pop("finished_s")
    table = _requests(calls, chunks, status)
    times = [chunks["at_s"], ended_s, calls["headers_s"], calls["sent_s"]]
    end_s = max((float(np.nanmax(some)) for some in times if np.isfinite(some).any()), default=0.0)
    sent = calls["sent_s"][np.isfinite(calls["sent_s"])]
    # What waits at the server nobody sees; what waits here has all been sent then.
    empty_s = float(sent.max()) if len(sent) and mode != "open" else end_s
    return Outcome(
        requests=table,
        iterations=unseen.iterations(),
        stints=unseen.stints(),
        timeline=no_timeline(),
        replica_busy_s=np.array([np.nan]),
        attention_busy_s=float("nan"),
        end_s=end_s,
        queue_empty_s=empty_s,
        peak_kv_tokens=0,
        kv_capacity_tokens=0,
        chunks=chunks,
        calls=calls,
    )


def _calls(noted: Sequence[Noted], requests: int) -> Columns:
    found: Columns = {}
    for name, first in noted[0].calls.items():
        column = np.full(requests, _FILL.get(name, -1), first.dtype)
        for part in noted:
            column[part.rows] = part.calls[name]
        found[name] = column.astype(_TYPES[name]) if name in _TYPES else column
    return found


def _chunks(noted: Sequence[Noted]) -> Columns:
    """In the order in which they came, to whichever client."""
    together = {name: np.concatenate([part.chunks[name] for part in noted]) for name in noted[0].chunks}
    order = np.argsort(together["at_s"], kind="stable")
    return {name: column[order] for name, column in together.items()}


def _requests(calls: Columns, chunks: Columns, status: NDArray[np.int8]) -> Columns:
    requests = len(status)
    first_s, last_s = np.full((2, requests), np.nan)
    # They are in the order of time, and of what is written twice the last stays.
    last_s[chunks["request"]] = chunks["at_s"]
    first_s[chunks["request"][::-1]] = chunks["at_s"][::-1]
    nothing = np.full(requests, -1, np.int64)
    return {
        "arrival_s": calls["due_s"].copy(),
        "admitted_s": np.full(requests, np.nan),
        "first_token_s": first_s,
        "finished_s": np.where(status == DONE, last_s, np.nan),
        "first_iteration": nothing,
        "last_iteration": nothing.copy(),
        "batch": nothing.astype(np.int32),
        "preemptions": np.zeros(requests, np.int32),
        "status": status,
    }
