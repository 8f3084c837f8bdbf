"""Checks vLLM's steps: which requests made a token, which were preempted, and that no prompt was computed.

The connector says that a prompt's KV is there. vLLM then computes one token of that request in its first step
(the prompt's last, which makes the first new one) and one in every later step. If it computes more, prefill
is not stripped out, and the replay must not go on. The one exception is vLLM's own: a request that was
preempted has lost its KV, and DecodeBenchConnector fills no request twice, so vLLM really computes it again.
That is counted.

An unchanged vLLM, which computes prompts, does not report what it schedules: a request that made a token was
scheduled, and one that ran and makes none while others do was preempted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class UnlikeError(Exception):
    """A vLLM that does not make one token a request a step, or computes what it should not."""


@dataclass(frozen=True)
class Counted:
    """vLLM's own statistics of a step (IterationStats): tokens of prompts whose first token came with it."""

    prompts: int
    computed: int
    transferred: int  # as reported by the connector
    generated: int


class Step(NamedTuple):
    """The outcome of a step, as rows of the trace."""

    size: int  # requests that made a token
    kv_tokens: int  # that their attention read
    joined: Sequence[int]
    preempted: Sequence[int]
    ended: Sequence[int]
    recomputed: int  # tokens computed again, of requests that had been preempted
    # Only where vLLM computes prompts. Requests that made their first token, with when their prompts were
    # begun with; and all the tokens of those that ended.
    begun: Sequence[tuple[int, float]] = ()
    answers: Sequence[tuple[int, Sequence[int]]] = ()


class Watch:
    """The requests that run, and the counts so far."""

    def __init__(self, prompt_tokens: Sequence[int], *, stripped: bool = True) -> None:
        self.steps = 0
        self._stripped = stripped
        self.preempted = 0
        self.recomputed = 0
        self._prompt_tokens = prompt_tokens
        self._running: set[int] = set()
        # Tokens of the requests that have begun and not ended, as of their last pause.
        self._made: dict[int, int] = {}
        self._since: dict[int, int] = {}  # the steps in which the running requests joined
        self._kv_tokens = 0  # of the running requests

    def served(self, made: Sequence[tuple[int, int, bool]]) -> Step:
        """Return a step of a vLLM that computes prompts too; one that makes no token is not counted."""
        if not made:
            return Step(0, 0, [], [], [], 0)
        return self.step({row: 1 for row, _, _ in made}, made, None)

    def step(
        self, scheduled: Mapping[int, int], made: Iterable[tuple[int, int, bool]], counted: Counted | None
    ) -> Step:
        """Return a step from the tokens scheduled by row, and (row, tokens made, ended) of its outputs."""
        self.steps += 1
        got, ended = self._tokens(made)
        preempted = [row for row in self._running if row not in scheduled]
        for row in preempted:
            self._pause(row)
        # Comparing sets costs next to nothing; most steps are of the requests that ran before.
        others = [] if scheduled.keys() == self._running else [r for r in scheduled if r not in self._running]
        first = [row for row in others if row not in self._made]
        again = [row for row in others if row in self._made]
        recomputed = sum(scheduled[row] - (row in got) for row in again)
        if self._stripped:
            self._require(scheduled, first, again, got)
            self._require_counted(first, len(got), counted)
        joined = [row for row in others if row in got]
        for row in joined:
            self._join(row)
        self.preempted += len(preempted)
        self.recomputed += recomputed
        kv_tokens = self._kv_tokens
        for row in ended:
            self._pause(row)
            del self._made[row]
        self._kv_tokens += len(self._running)  # one token more of each
        return Step(len(got), kv_tokens, joined, preempted, ended, recomputed)

    def _tokens(self, made: Iterable[tuple[int, int, bool]]) -> tuple[set[int], list[int]]:
        got, ended = set(), []
        for row, tokens, over in made:
            if tokens != 1:
                self._fail(f"request {row} made {tokens} tokens at once")
            got.add(row)
            if over:
                ended.append(row)
        return got, ended

    def _require(
        self, scheduled: Mapping[int, int], first: Sequence[int], again: Sequence[int], got: set[int]
    ) -> None:
        beyond = sum(scheduled.values()) - len(scheduled) - sum(scheduled[row] - 1 for row in again)
        if beyond:
            row = next(row for row, tokens in scheduled.items() if tokens != 1 and row not in again)
            what = "of its prompt" if row in first else "though it decodes"
            self._fail(f"it computed {scheduled[row]:,} tokens of request {row} {what}")
        silent = (self._running | set(first)) - got
        if silent:
            self._fail(f"request {min(silent)} made no token, though it was scheduled")
        strangers = got - scheduled.keys()
        if strangers:
            self._fail(f"request {min(strangers)} made a token, though it was not scheduled")

    def _require_counted(self, first: Sequence[int], got: int, counted: Counted | None) -> None:
        if counted is None:
            if got:
                self._fail("it has no statistics of a step that made tokens")
            return
        prompts = sum(self._prompt_tokens[row] for row in first)
        expected = Counted(prompts, len(first), prompts - len(first), got)
        if counted != expected:
            self._fail(
                f"its own statistics have {counted.computed:,} prompt tokens computed and "
                f"{counted.transferred:,} transferred, of {counted.prompts:,}, and {counted.generated:,} "
                f"generated; {expected.computed:,}, {expected.transferred:,}, {expected.prompts:,} and "
                f"{expected.generated:,} were expected"
            )

    def _join(self, row: int) -> None:
        self._made.setdefault(row, 0)
        self._since[row] = self.steps
        self._running.add(row)
        self._kv_tokens += self._prompt_tokens[row] + self._made[row]

    def _pause(self, row: int) -> None:
        """End a request's stint with this step, or with the one before if it was preempted."""
        self._running.remove(row)
        since = self._since.pop(row)
        # A preempted request made nothing in this step; one that ends did, and is forgotten.
        self._made[row] += self.steps - since
        self._kv_tokens -= self._prompt_tokens[row] + self._made[row]

    def _fail(self, what: str) -> None:
        why = "prefill is not stripped out: " if self._stripped else ""
        raise UnlikeError(f"{why}in step {self.steps}, {what}")
