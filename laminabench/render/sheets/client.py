"""Tables of live Runs: what only a client can tell."""

from __future__ import annotations

from collections.abc import Sequence

from laminabench.render.format import number4, share
from laminabench.render.html import Markup, table
from laminabench.render.shown import Shown

_TIMES = (
    ("Sent to first chunk (TTFT), ms", "ttft_ms"),
    ("Between two chunks (ITL), ms", "itl_ms"),
    ("Between two tokens (TBT), ms", "tbt_ms"),
    ("Sent to last chunk, ms", "e2e_ms"),
    ("Sent after it was due, ms", "lateness_ms"),
)
_POINTS = ("mean", "p50", "p90", "p99", "p99.9", "max")
_ATTEMPTS = ("sent", "retried", "failed")
# Of a server that answers everything in another way the first ones do; all are in run.json.
_MOST_ERRORS = 20


def seen_tables(runs: Sequence[Shown]) -> list[Markup]:
    """Two for each Run that a client saw."""
    return [each_table for each in runs if each.seen_by_client for each_table in (_times(each), _calls(each))]


def _times(each: Shown) -> Markup:
    rows = []
    for title, key in _TIMES:
        points = [each.number_at(f"{key}.{point}") for point in _POINTS]
        if any(value is not None for value in points):
            rows.append((title, *map(number4, points)))
    return table(f"Times of {each.name}", ("", *_POINTS), rows, "numbers")


def _calls(each: Shown) -> Markup:
    attempts = each.summary.attempts
    mean, most = (number4(each.number_at(f"tokens_per_chunk.{key}")) for key in ("mean", "max"))
    dealt = share(each.number_at("tokens_per_chunk.even_share"))
    sent, retried, failed = (number4(each.number_at(f"attempts.{key}")) for key in _ATTEMPTS)
    errors = list(attempts.by_error.items())[:_MOST_ERRORS] if attempts else []
    rows = [
        ("Tokens a chunk, mean and most", f"{mean}, {most}"),
        ("Tokens dealt evenly, as the server did not say", dealt),
        ("Attempts", sent),
        ("of these, again", retried),
        ("Requests that failed", failed),
        *((f"failed: {why}", number4(times)) for why, times in errors),
    ]
    return table(f"Calls of {each.name}", ("", ""), rows)
