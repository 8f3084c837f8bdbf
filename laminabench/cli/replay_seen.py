"""What is printed of a replay that only a client saw: chunks beside tokens, its own lateness, attempts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from laminabench.cli.output import literal
from laminabench.cli.replay_numbers import number, share
from laminabench.cli.replay_parts import in_time, outcomes, points, price, throughput

# Reasons to fail that fit on a screen; --json has more.
MOST_ERRORS = 4


def seen_lines(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A line for each thing that a client can know."""
    yield "requests", outcomes(result["requests"])
    yield from _errors(result["attempts"])
    yield "throughput", throughput(result)
    at_once = f"[bold]{number(result['mean_batch'])}[/bold] requests streaming at once"
    yield "mean batch", f"{at_once}, {number(result['mean_waiting'])} waiting for their first chunk"
    if result["lateness_ms"]:
        yield "sent late by", f"{points(result['lateness_ms'])} ms: this client's own doing"
    yield "TTFT in ms", f"{points(result['ttft_ms'])}: sent to first chunk"
    yield "ITL in ms", f"{points(result['itl_ms'])}: between chunks of {_chunk(result['tokens_per_chunk'])}"
    yield "TBT in ms", f"{points(result['tbt_ms'])}: between tokens"
    yield f"within {result['slo']['tbt_ms']:g} ms", in_time(result["slo"])
    yield "end to end, ms", points(result["e2e_ms"])
    if result["cost"]["usd_per_hour"] is not None:
        yield "cost", price(result["cost"])
    yield "attempts", _attempts(result["attempts"])
    if different := _different(result["counted"]):
        yield "lengths", different


def _chunk(found: dict[str, Any]) -> str:
    sizes = (
        "1 token" if found["max"] == 1 else f"{number(found['mean'])} tokens, {number(found['max'])} at most"
    )
    dealt = f", {share(found['even_share'])} of them [bold]dealt evenly[/bold]" if found["even_share"] else ""
    return f"{sizes}{dealt}"


def _attempts(found: dict[str, Any]) -> str:
    answers = ", ".join(f"{times:,} with {status}" for status, times in found["by_status"].items())
    again = f"{found['retried']:,} of them again" if found["retried"] else "none twice"
    return f"{found['sent']:,} sent, {again}; {f'answered: {answers}' if answers else 'no answer'}"


def _errors(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Why requests failed, the most frequent reasons first."""
    errors = list(found["by_error"].items())
    for why, times in errors[:MOST_ERRORS]:
        yield "failed", f"{times:,}: {literal(why)}"
    if len(errors) > MOST_ERRORS:
        yield "failed", f"for {len(errors) - MOST_ERRORS} other reasons, see --json"


def _different(counted: dict[str, Any]) -> str | None:
    """Requests that were not what the trace has: the numbers are then of another trace."""
    said = []
    if counted["other_length"]:
        said.append(f"{counted['other_length']:,} requests got another number of tokens than they asked for")
    if counted["prompt_tokens"]["other"]:
        said.append(f"{counted['prompt_tokens']['other']:,} prompts had another length by the server's count")
    return "; ".join(said) or None
