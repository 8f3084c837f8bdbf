"""The progress of a client, sampled a few times a second from its records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from laminabench.runs.status import FAILED
from laminabench.systems.live.endpoint.records import Records
from laminabench.systems.live.recent import Recent
from laminabench.util.live_progress import Gaps

# Of more chunks the newest are sampled: the client has responses to read.
MOST_CHUNKS = 8192


class Progress(NamedTuple):
    """Cumulative counts; `gaps` are those since the last sample."""

    ended: int
    failed: int
    tokens: int
    under_way: int
    answered: int  # of those, requests that have had a token
    gaps: Gaps


NO_GAPS = Gaps(np.zeros(0), np.zeros(0, np.int64))
NO_PROGRESS = Progress(0, 0, 0, 0, 0, NO_GAPS)


class ProgressSampler:
    """A sampler of one client's records."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._last_s = np.full(len(records.rows), np.nan)  # when each request last had a chunk
        self._chunks = self._ended = self._failed = 0  # that have been looked at
        self._known = True  # how many tokens chunks have

    def sample(self) -> Progress:
        """Return the counts, and the gaps since the last sample."""
        records = self._records
        gaps = self._gaps()
        ended = np.array(records.ended_places[self._ended :], np.int64)
        self._ended += len(ended)
        self._failed += sum(records.calls["status"][place] == FAILED for place in ended)
        self._last_s[ended] = np.nan
        under_way = records.begun - self._ended
        answered = int(np.count_nonzero(np.isfinite(self._last_s)))
        return Progress(self._ended, self._failed, records.tokens, under_way, answered, gaps)

    def _gaps(self) -> Gaps:
        """Return the gaps between tokens. Those of one chunk came together: all but its first have none."""
        records, first = self._records, self._chunks
        self._chunks = len(records.chunk_place)
        places = np.array(records.chunk_place[first:], np.int64)
        at_s, tokens = np.array(records.chunk_at_s[first:]), np.array(records.chunk_tokens[first:], np.int64)
        self._known = self._known and bool((tokens > 0).all())
        if not self._known:
            self._last_s[places] = at_s
            return NO_GAPS
        older = slice(0, max(0, len(places) - MOST_CHUNKS))
        self._last_s[places[older]] = at_s[older]  # of what is written twice the last stays
        places, at_s, tokens = (column[older.stop :] for column in (places, at_s, tokens))
        order = np.argsort(places, kind="stable")
        of, times = places[order], at_s[order]
        begins = np.ones(len(of), np.bool_)
        np.not_equal(of[1:], of[:-1], out=begins[1:])
        before_s = np.empty(len(of))
        before_s[1:] = times[:-1]
        before_s[begins] = self._last_s[of[begins]]
        self._last_s[of] = times
        between = (times - before_s)[np.isfinite(before_s)]
        together = int((tokens - 1).sum())
        more = int(together > 0)
        weights = np.append(np.ones(len(between), np.int64), np.full(more, together))
        return Gaps(np.append(between, np.zeros(more)), weights)


def report(recent: Recent, began_s: float, clients: Sequence[Progress], new: Gaps) -> None:
    """Report all clients together.

    The queue of the server cannot be observed: requests without a first token count as waiting.
    """
    at_s = max(0.0, time.monotonic() - began_s)
    answered = sum(each.answered for each in clients)
    failed = sum(each.failed for each in clients)
    recent.gaps(at_s, new)
    if recent.due(at_s):
        recent.moment(
            at_s,
            finished=sum(each.ended for each in clients) - failed,
            failed=failed,
            tokens=sum(each.tokens for each in clients),
            batch=answered,
            waiting=sum(each.under_way for each in clients) - answered,
        )
