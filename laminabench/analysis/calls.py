"""What only a client can tell: chunks, time to the first of them, its own lateness, attempts and errors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.distribution import Distribution, distribution
from laminabench.analysis.exact import total
from laminabench.analysis.rates import Lengths, mean_at_once
from laminabench.analysis.streams import Chunks, Seen, Streams
from laminabench.analysis.window import Window
from laminabench.runs.status import DONE, FAILED, statuses
from laminabench.sim.outcome import Columns, Outcome
from laminabench.sim.spec import Float64, Mode, Ticks, ticks

_PER_MS = 1000.0
# Reasons to fail that are told apart; what is rarer is counted together.
MOST_ERRORS = 20
OTHER_ERRORS = "(other errors)"


def of_calls(outcome: Outcome, lengths: Lengths, seen: Seen, mode: Mode, window: Window) -> dict[str, Any]:
    """Keys of a summary that other replays do not have.

    Times and chunks are of the window; lateness, attempts and counts are of the whole run.
    """
    calls, streams, codes = outcome.calls, seen.streams, statuses(outcome)
    assert calls is not None
    sent, finished = _known(calls["sent_s"]), _known(outcome.requests["finished_s"])
    began = (streams.first >= 0) & (sent >= 0)
    return {
        **_of_chunks(seen.chunks, calls["even"], window),
        "ttft_ms": _between(sent, streams.first, began, window).describe(_PER_MS),
        "e2e_ms": _between(sent, finished, (finished >= 0) & (sent >= 0), window).describe(_PER_MS),
        "mean_waiting": mean_at_once(sent[began], streams.first[began], window),
        "lateness_ms": _lateness(sent, _known(calls["due_s"])) if mode == "open" else None,
        "attempts": _attempts(calls, codes),
        "counted": _counted(calls, lengths, streams, codes),
    }


def _of_chunks(found: Chunks, even: NDArray[np.bool_], window: Window) -> dict[str, Any]:
    """Gaps of chunks, however many tokens are in one, and how many there are."""
    inside = (found.end > window.start) & (found.end <= window.end)
    tokens = found.tokens[inside]
    made, dealt = total(tokens), total(tokens[even[found.request[inside]]])
    return {
        "itl_ms": distribution(found.gap[inside & (found.gap >= 0)]).describe(_PER_MS),
        "tokens_per_chunk": {
            "mean": made / len(tokens) if len(tokens) else None,
            "max": int(tokens.max()) if len(tokens) else None,
            "even_share": dealt / made if made else None,
        },
    }


def _between(start: Ticks, end: Ticks, some: NDArray[np.bool_], window: Window) -> Distribution:
    """From one moment of a request to another that is in the window."""
    some = some & (end > window.start) & (end <= window.end)
    return distribution(np.maximum(end[some] - start[some], 0))


def _lateness(sent: Ticks, due: Ticks) -> dict[str, float | None]:
    """By how much the client itself missed the timestamps."""
    some = (sent >= 0) & (due >= 0)
    found = distribution(np.maximum(sent[some] - due[some], 0)).describe(_PER_MS)
    return {name: found[name] for name in ("p50", "p99", "max")}


def _attempts(calls: Columns, codes: NDArray[np.int8]) -> dict[str, Any]:
    attempts, answers = calls["attempts"].astype(np.int64), calls["status_code"]
    by_error = Counter(str(error) for error in calls["error"].tolist() if error)
    named = dict(by_error.most_common(MOST_ERRORS))
    if rest := by_error.total() - sum(named.values()):
        named[OTHER_ERRORS] = rest
    status, count = np.unique(answers[answers >= 0], return_counts=True)
    return {
        "sent": total(attempts),
        "retried": total(np.maximum(attempts - 1, 0)),
        "failed": int(np.count_nonzero(codes == FAILED)),
        "by_error": named,
        "by_status": {str(each): times for each, times in zip(status.tolist(), count.tolist(), strict=True)},
    }


def _counted(calls: Columns, lengths: Lengths, streams: Streams, codes: NDArray[np.int8]) -> dict[str, Any]:
    """What the server says that it read and made, beside what it was asked for."""
    asked = {"prompt_tokens": lengths.prompt_tokens, "completion_tokens": lengths.output_tokens}
    said = {"prompt_tokens": calls["prompt_counted"], "completion_tokens": calls["completion_counted"]}
    found: dict[str, Any] = {}
    for name, counts in said.items():
        told = counts >= 0
        found[name] = {
            "requests": int(np.count_nonzero(told)),
            "asked": total(asked[name][told]),
            "said": total(counts[told]),
            "other": int(np.count_nonzero(counts[told] != asked[name][told])),
        }
    wrong = (codes == DONE) & (streams.tokens != lengths.output_tokens)
    return {**found, "other_length": int(np.count_nonzero(wrong))}


def _known(seconds: Float64) -> Ticks:
    """In ticks, -1 where there is no such moment."""
    found = np.full(len(seconds), -1, np.int64)
    some = np.isfinite(seconds)
    found[some] = ticks(seconds[some])
    return found
