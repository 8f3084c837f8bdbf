"""Whether a plan has a winner, and the sentence that says why not."""

from __future__ import annotations

from laminabench.errors import CheckFailedError, UserError
from laminabench.plan.answer import Answer


def require_possible(found: Answer) -> None:
    """A UserError if no candidate could even be replayed: the longest request fits into none of them."""
    counts = found.found.counts
    if not found.found.points and counts.get("too_small") and not counts.get("falls_behind"):
        trace = found.question.trace
        longest = int((trace.prompt_tokens.astype("int64") + trace.output_tokens).max())
        raise UserError(
            "plan-longest-request",
            f"no candidate holds the longest request of {trace.meta.name}, {longest:,} tokens; leave such "
            "requests out with --max-prompt, --max-output and --too-long drop, or raise --budget",
        )


def require_winner(found: Answer) -> None:
    """A CheckFailedError that says which candidate comes nearest, and by how much it misses."""
    if found.winner is not None:
        return
    limit, costs = found.question.slo_tbt_p99_ms, found.question.costs.name
    if found.nearest is None:
        raise CheckFailedError(
            "plan-falls-behind",
            f"with {costs}, none of {found.found.considered:,} candidates keeps up with "
            f"{found.question.trace.meta.name}: 99 of 100 requests are to wait no longer than "
            f"{found.question.slo_queueing_p99_s:g} s",
        )
    missed = found.nearest.tbt_p99_ms
    raise CheckFailedError(
        "plan-limit-missed",
        f"with {costs}, none of {found.found.considered:,} candidates has a TBT p99 of {limit:g} ms; nearest "
        f"is {found.nearest.candidate} with {missed:.3g} ms, {missed / limit - 1:.1%} over",
    )
