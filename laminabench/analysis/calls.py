"""Metrics that only a client can measure: chunks, time to the first one, lateness, attempts and errors."""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from laminabench.analysis.distribution import Distribution, distribution, total
from laminabench.analysis.rates import Lengths, mean_at_once
from laminabench.analysis.streams import Chunks, Observed, Streams
from laminabench.runs.status import DONE, FAILED, statuses
from laminabench.runs.summary import (
    Attempts,
    ClientSummary,
    Count,
    Counted,
    Lateness,
    Percentiles,
    Summary,
    TokensPerChunk,
    Window,
)
from laminabench.sim.outcome import Columns, Outcome
from laminabench.sim.spec import Float64, Mode, Ticks, ticks

_PER_MS = 1000.0
# Error kinds that are listed by name; rarer ones are counted together.
MOST_ERRORS = 20
OTHER_ERRORS = "(other errors)"


def of_client(
    summary: Summary, outcome: Outcome, lengths: Lengths, client: Observed, mode: Mode
) -> ClientSummary:
    """Add what only a client knows to the numbers of every replay.

    Times and chunks are of the window; lateness, attempts and counts are of the whole run.
    """
    window, calls, streams, codes = summary.window, outcome.calls, client.streams, statuses(outcome)
    assert calls is not None
    sent, finished = _known(calls["sent_s"]), _known(outcome.requests["finished_s"])
    began = (streams.first >= 0) & (sent >= 0)
    itl_ms, tokens_per_chunk = _of_chunks(client.chunks, calls["even"], window)
    timed = structs.replace(
        summary,
        ttft_ms=_between(sent, streams.first, began, window).describe(_PER_MS),
        e2e_ms=_between(sent, finished, (finished >= 0) & (sent >= 0), window).describe(_PER_MS),
    )
    return ClientSummary(
        **structs.asdict(timed),
        itl_ms=itl_ms,
        tokens_per_chunk=tokens_per_chunk,
        mean_waiting=mean_at_once(sent[began], streams.first[began], window),
        lateness_ms=_lateness(sent, _known(calls["due_s"])) if mode == "open" else None,
        attempts=_attempts(calls, codes),
        counted=_counted(calls, lengths, streams, codes),
    )


def _of_chunks(pieces: Chunks, even: NDArray[np.bool_], window: Window) -> tuple[Percentiles, TokensPerChunk]:
    """Return the gaps between chunks, whatever their number of tokens, and the tokens per chunk."""
    inside = (pieces.end > window.start) & (pieces.end <= window.end)
    tokens = pieces.tokens[inside]
    made, evenly = total(tokens), total(tokens[even[pieces.request[inside]]])
    return distribution(pieces.gap[inside & (pieces.gap >= 0)]).describe(_PER_MS), TokensPerChunk(
        mean=made / len(tokens) if len(tokens) else None,
        max=int(tokens.max()) if len(tokens) else None,
        even_share=evenly / made if made else None,
    )


def _between(start: Ticks, end: Ticks, some: NDArray[np.bool_], window: Window) -> Distribution:
    """Return times between two moments of requests, if the second is in the window."""
    some = some & (end > window.start) & (end <= window.end)
    return distribution(np.maximum(end[some] - start[some], 0))


def _lateness(sent: Ticks, due: Ticks) -> Lateness:
    """Return how late the client sent requests."""
    some = (sent >= 0) & (due >= 0)
    late = distribution(np.maximum(sent[some] - due[some], 0)).describe(_PER_MS)
    return Lateness(p50=late.p50, p99=late.p99, max=late.max)


def _attempts(calls: Columns, codes: NDArray[np.int8]) -> Attempts:
    attempts, answers = calls["attempts"].astype(np.int64), calls["status_code"]
    by_error = Counter(str(error) for error in calls["error"].tolist() if error)
    named = dict(by_error.most_common(MOST_ERRORS))
    if rest := by_error.total() - sum(named.values()):
        named[OTHER_ERRORS] = rest
    status, count = np.unique(answers[answers >= 0], return_counts=True)
    return Attempts(
        sent=total(attempts),
        retried=total(np.maximum(attempts - 1, 0)),
        failed=int(np.count_nonzero(codes == FAILED)),
        by_error=named,
        by_status={str(each): times for each, times in zip(status.tolist(), count.tolist(), strict=True)},
    )


def _counted(calls: Columns, lengths: Lengths, streams: Streams, codes: NDArray[np.int8]) -> Counted:
    """Compare the server's token counts with those that were requested."""
    wrong = (codes == DONE) & (streams.tokens != lengths.output_tokens)
    return Counted(
        prompt_tokens=_count(lengths.prompt_tokens, calls["prompt_counted"]),
        completion_tokens=_count(lengths.output_tokens, calls["completion_counted"]),
        other_length=int(np.count_nonzero(wrong)),
    )


def _count(asked: NDArray[np.int32], counted: NDArray[np.int64]) -> Count:
    """Compare counts of the requests for which the server has one."""
    known = counted >= 0
    return Count(
        requests=int(np.count_nonzero(known)),
        asked=total(asked[known]),
        said=total(counted[known]),
        other=int(np.count_nonzero(counted[known] != asked[known])),
    )


def _known(seconds: Float64) -> Ticks:
    """Convert to ticks, -1 where there is no such moment."""
    moments = np.full(len(seconds), -1, np.int64)
    some = np.isfinite(seconds)
    moments[some] = ticks(seconds[some])
    return moments
