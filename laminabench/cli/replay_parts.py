"""Lines that the summary of every replay has, whoever saw its tokens."""

from __future__ import annotations

from typing import Any

from laminabench.cli.replay_numbers import number, share

WINDOWS = {
    "queue_never_empty": "in which the queue was never empty",
    "concurrency_held": "at full concurrency",
    "arrivals": "from first to last arrival",
    "whole_run": "in all",
}


def throughput(result: dict[str, Any]) -> str:
    """In the steady window, and in all."""
    steady, whole = result["window"], result["whole_run"]
    length = f"{steady['end_s'] - steady['start_s']:,.1f} s {WINDOWS[steady['kind']]}"
    rest = f"whole run {number(whole['throughput_tokens_per_s'])} over {result['duration_s']:,.1f} s"
    return f"[bold]{number(result['throughput_tokens_per_s'])} tokens/s[/bold] over {length}; {rest}"


def points(found: dict[str, Any]) -> str:
    """Mean, percentiles and maximum."""
    return ", ".join(f"{name} {number(value)}" for name, value in found.items())


def in_time(slo: dict[str, Any]) -> str:
    """How much was within the limit."""
    tokens, requests = share(slo["token_attainment"]), share(slo["request_attainment"])
    goodput = f"goodput {number(slo['goodput_tokens_per_s'])} tokens/s"
    return f"{tokens} of tokens, {requests} of requests throughout; {goodput}"


def price(cost: dict[str, Any]) -> str:
    """What tokens cost."""
    if cost["usd_per_hour"] is None:
        return "-, for want of a price; --price DEVICE=USD_PER_HOUR gives one"
    return (
        f"${cost['usd_per_hour']:.2f} an hour, ${number(cost['usd_per_million_tokens'])} a million tokens, "
        f"{number(cost['tokens_per_usd'])} tokens a dollar"
    )


def outcomes(counts: dict[str, Any]) -> str:
    """What became of the requests; of what there was none of, nothing is said."""
    words = {
        "rejected": "rejected because they could never fit",
        "unfinished": "unfinished",
        "failed": "[bold]failed[/bold]",
    }
    others = (f", {counts[name]:,} {said}" for name, said in words.items() if counts.get(name))
    return f"{counts['completed']:,} completed{''.join(others)}"
