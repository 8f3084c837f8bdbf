"""What only a client can tell: chunks, the wait for the first of them, its own lateness, errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laminabench.report.markup import Markup, table
from laminabench.report.numbers import number, share
from laminabench.report.shown import Shown

_TIMES = (
    ("Sent to first chunk (TTFT), ms", "ttft_ms"),
    ("Between two chunks (ITL), ms", "itl_ms"),
    ("Between two tokens (TBT), ms", "tbt_ms"),
    ("Sent to last chunk, ms", "e2e_ms"),
    ("Sent after it was due, ms", "lateness_ms"),
)
_POINTS = ("mean", "p50", "p90", "p99", "p99.9", "max")
# Of a server that answers everything in another way the first ones do; all are in run.json.
_MOST_ERRORS = 20


def seen_tables(runs: Sequence[Shown]) -> list[Markup]:
    """Two for each Run that a client saw."""
    return [each_table for each in runs if each.seen_by_client for each_table in (_times(each), _calls(each))]


def _times(each: Shown) -> Markup:
    rows = []
    for title, key in _TIMES:
        found = each.summary.get(key) or {}
        if any(found.get(point) is not None for point in _POINTS):
            rows.append((title, *(number(found.get(point)) for point in _POINTS)))
    return table(f"Times of {each.name}", ("", *_POINTS), rows, "numbers")


def _calls(each: Shown) -> Markup:
    chunk, attempts = (each.summary.get(name) or {} for name in ("tokens_per_chunk", "attempts"))
    rows: list[tuple[str, str]] = [
        ("Tokens a chunk, mean and most", f"{number(chunk.get('mean'))}, {number(chunk.get('max'))}"),
        ("Tokens dealt evenly, as the server did not say", share(chunk.get("even_share"))),
        ("Attempts", number(attempts.get("sent"))),
        ("of these, again", number(attempts.get("retried"))),
        ("Requests that failed", number(attempts.get("failed"))),
        *_errors(attempts.get("by_error") or {}),
    ]
    return table(f"Calls of {each.name}", ("", ""), rows)


def _errors(by_error: dict[str, Any]) -> list[tuple[str, str]]:
    return [(f"failed: {why}", number(times)) for why, times in list(by_error.items())[:_MOST_ERRORS]]
