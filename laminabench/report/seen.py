"""Tables of live Runs: what only a client can tell, and what faults cost."""

from __future__ import annotations

from collections.abc import Sequence

from laminabench.present.numbers import number4, share
from laminabench.report.markup import Markup, table
from laminabench.report.shown import Shown
from laminabench.runs.summary import ClientSummary, FaultCost

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
    assert isinstance(each.summary, ClientSummary)
    attempts = each.summary.attempts
    mean, most = (number4(each.number_at(f"tokens_per_chunk.{key}")) for key in ("mean", "max"))
    dealt = share(each.number_at("tokens_per_chunk.even_share"))
    sent, retried, failed = (number4(each.number_at(f"attempts.{key}")) for key in _ATTEMPTS)
    errors = list(attempts.by_error.items())[:_MOST_ERRORS]
    rows = [
        ("Tokens a chunk, mean and most", f"{mean}, {most}"),
        ("Tokens dealt evenly, as the server did not say", dealt),
        ("Attempts", sent),
        ("of these, again", retried),
        ("Requests that failed", failed),
        *((f"failed: {why}", number4(times)) for why, times in errors),
    ]
    return table(f"Calls of {each.name}", ("", ""), rows)


_HEADER = (
    *("Noticed at, s", "Workers", "Why", "Noticed after, s", "Iterations went on after, s"),
    *("Normal after, s", "Worst TBT, ms", "Goodput lost, tokens"),
)
# Of a long chaos run the first ones do; all are in run.json.
_MOST = 50


def fault_tables(runs: Sequence[Shown]) -> list[Markup]:
    """One for each Run that had any."""
    return [_faults(each, each.summary.fault_costs) for each in runs if each.summary.fault_costs]


def _faults(each: Shown, faults: list[FaultCost]) -> Markup:
    rows = [
        (
            number4(fault.noticed_s),
            ", ".join(fault.workers) or "none",
            fault.why,
            *map(number4, (fault.detection_s, fault.recovery_s, fault.normal_again_s)),
            *map(number4, (fault.tbt_worst_ms, fault.goodput_lost_tokens)),
        )
        for fault in faults[:_MOST]
    ]
    rest = f"; the first {_MOST} of {len(faults):,}" if len(faults) > _MOST else ""
    return table(f"Faults of {each.name}{rest}", _HEADER, rows)
