"""The requests as a load generator sees them: when each was sent, when its pieces arrived, how it ended.

This is the common form of a Run and of the tools' files: a Run is converted to it to be exported, and a
tool's file to be imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.rates import offered_s
from laminabench.analysis.streams import observed_of
from laminabench.analysis.tbt import Tokens, tokens_of
from laminabench.runs.read import Run
from laminabench.runs.status import DONE, FAILED, REJECTED
from laminabench.sim.outcome import Columns, Outcome
from laminabench.sim.spec import TICKS_PER_S, Float64, ticks
from laminabench.systems.live.endpoint.sse import split_evenly
from laminabench.util.errors import UserError

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of streams by request, those of one request in order of arrival."""

    request: Int64
    at_s: Float64
    tokens: Int32

    def gaps(self) -> tuple[Int64, Float64]:
        """Return the request and the gap of every piece but a request's first."""
        later = self.request[1:] == self.request[:-1]
        return self.request[1:][later], np.diff(self.at_s)[later]


@dataclass(frozen=True, slots=True)
class Calls:
    """Columns with a row for each request sent, in order; times in seconds since the first was sent.

    NaN, -1 and "" mean unknown.
    """

    sent_s: Float64
    due_s: Float64
    headers_s: Float64  # when the answer began
    first_s: Float64  # its first piece
    last_s: Float64  # its last piece
    prompt_tokens: Int32
    output_tokens: Int32  # received
    prompt_counted: Int64  # by the server, if the tool says so
    completion_counted: Int64
    status_code: Int32
    status: NDArray[np.int8]
    even: NDArray[np.bool_]  # its tokens were split evenly over its pieces
    error: NDArray[Any]
    pieces: Pieces

    def __len__(self) -> int:
        return len(self.sent_s)

    @property
    def done(self) -> NDArray[np.bool_]:
        """The mask of the requests that were answered completely."""
        complete: NDArray[np.bool_] = self.status == DONE
        return complete

    @property
    def end_s(self) -> float:
        """The latest known time of any event."""
        known = [each[np.isfinite(each)] for each in (self.sent_s, self.last_s)]
        return max((float(each.max()) for each in known if len(each)), default=0.0)

    def spent_s(self) -> Float64:
        """Return the seconds from sending to the last piece."""
        return self.last_s - self.sent_s

    def waited_s(self) -> Float64:
        """Return the seconds from sending to the first piece."""
        return self.first_s - self.sent_s

    def per_token_s(self) -> Float64:
        """Return each request's mean time of a token after its first; NaN without a second token."""
        more = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        mean: Float64 = (self.last_s - self.first_s) / more
        return mean


def calls_of(run: Run) -> Calls:
    """Return the calls of a Run; requests that were never sent are left out."""
    outcome = run.outcome
    if outcome.tally is not None:
        raise UserError(
            "export-no-iterations",
            f"{run.directory} was replayed with --no-iterations, so times of tokens are unknown; replay it "
            "again without that flag",
        )
    sent_s = offered_s(outcome)
    came = np.flatnonzero(np.isfinite(sent_s))
    order = came[np.argsort(sent_s[came], kind="stable")]
    if not len(order):
        raise UserError(
            "export-nothing-sent", f"no request of {run.directory} was ever sent; there is nothing to export"
        )
    began_s = float(sent_s[order[0]])
    pieces = _renumbered(_pieces(outcome), order, len(sent_s), began_s)
    made = np.bincount(pieces.request, pieces.tokens, len(order)).astype(np.int32)
    first_s, last_s = np.full((2, len(order)), np.nan)
    last_s[pieces.request] = pieces.at_s  # the last write wins
    first_s[pieces.request[::-1]] = pieces.at_s[::-1]
    status = outcome.requests["status"][order]
    known = outcome.calls or _unknown(len(sent_s))
    error = known["error"][order].astype(object)
    error[(status == REJECTED) & (error == "")] = "rejected: it could never fit"
    error[(status == FAILED) & (error == "")] = "failed"
    return Calls(
        sent_s=sent_s[order] - began_s,
        due_s=known["due_s"][order] - began_s,
        headers_s=known["headers_s"][order] - began_s,
        first_s=first_s,
        last_s=last_s,
        prompt_tokens=run.prompt_tokens[order],
        output_tokens=made,
        prompt_counted=known["prompt_counted"][order],
        completion_counted=known["completion_counted"][order],
        status_code=known["status_code"][order],
        status=status,
        even=known["even"][order],
        error=error,
        pieces=pieces,
    )


def calls_in(sent_s: Float64, answers: Sequence[tuple[Float64, int]], **known: Any) -> Calls:
    """Return the calls of a tool's file: of each answer the times of its pieces, and its tokens.

    Tokens are split evenly over the pieces; pieces without one are left out. Files do not say whether the
    server or the tool counted tokens, so these counts and all else that is not `known` stay unknown.
    """
    size, lists = len(answers), [at_s for at_s, _ in answers]
    split = [split_evenly(tokens, len(at_s)) if len(at_s) else [] for at_s, tokens in answers]
    tokens = np.concatenate([np.zeros(0, np.int64), *split]).astype(np.int32)
    some = tokens > 0
    request = np.repeat(np.arange(size), [len(at_s) for at_s in lists])[some]
    pieces = Pieces(request, np.concatenate([np.zeros(0), *lists])[some], tokens[some])
    first_s, last_s = (
        np.array([at_s[end] if len(at_s) else np.nan for at_s in lists], np.float64) for end in (0, -1)
    )
    received = np.bincount(pieces.request, pieces.tokens, size).astype(np.int32)
    columns = {"first_s": first_s, "last_s": last_s, "output_tokens": received, **known}
    return Calls(sent_s=sent_s, pieces=pieces, **{**_unknown(size), **columns})


def _renumbered(pieces: Pieces, order: Int64, requests: int, began_s: float) -> Pieces:
    """Renumber pieces by the rows that remain."""
    rank = np.full(requests, -1, np.int64)
    rank[order] = np.arange(len(order))
    request = rank[pieces.request]
    rows = np.flatnonzero(request >= 0)
    rows = rows[np.lexsort((pieces.at_s[rows], request[rows]))]
    return Pieces(request[rows], pieces.at_s[rows] - began_s, pieces.tokens[rows])


def _pieces(outcome: Outcome) -> Pieces:
    observed = observed_of(outcome)
    if observed is not None:
        return Pieces(observed.chunks.request, observed.chunks.end / TICKS_PER_S, observed.chunks.tokens)
    return _made(outcome, tokens_of(outcome))


def _made(outcome: Outcome, tokens: Tokens) -> Pieces:
    """Return the pieces of an engine's Run: a token at the end of each iteration that a request was in."""
    columns, stints = outcome.requests, outcome.stints
    unbroken = np.flatnonzero((columns["first_iteration"] >= 0) & (columns["last_iteration"] >= 0))
    unbroken = unbroken[~np.isin(unbroken, stints["request"])]
    names = ("batch", "first_iteration", "last_iteration")
    batch, first, last = (np.concatenate([columns[name][unbroken], stints[name]]) for name in names)
    of = np.concatenate([unbroken, stints["request"]])
    base = np.cumsum([0, *(len(lane.end) for lane in tokens.lanes)])
    ends = np.concatenate([np.zeros(0, np.int64), *(lane.end for lane in tokens.lanes)])
    count = last - first + 1
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    request, at = np.repeat(of, count), ends[np.repeat(base[batch] + first, count) + within]
    if outcome.pool is not None:
        # The first token came from the devices that compute prompts.
        earliest = np.full(len(columns["status"]), np.iinfo(np.int64).max)
        np.minimum.at(earliest, request, at)
        there = np.flatnonzero(np.isfinite(columns["first_token_s"]))
        firsts = ticks(columns["first_token_s"][there])
        separate = firsts < earliest[there]
        request, at = np.concatenate([request, there[separate]]), np.concatenate([at, firsts[separate]])
    return Pieces(request, at / TICKS_PER_S, np.ones(len(request), np.int32))


def _unknown(requests: int) -> Columns:
    """Return the columns of a client's calls, all unknown."""
    return {
        **dict.fromkeys(("due_s", "headers_s"), np.full(requests, np.nan)),
        **dict.fromkeys(("prompt_counted", "completion_counted"), np.full(requests, -1)),
        "status_code": np.full(requests, -1, np.int32),
        "even": np.zeros(requests, np.bool_),
        "error": np.full(requests, "", object),
    }
