"""Compare a client's numbers with ours: what has to be equal, what may differ, by how much and why."""

from __future__ import annotations

import math
from dataclasses import dataclass

from load import Counted, Load, Reported

# A client stamps a piece when it gets to it, and may share the cores with the server. At either end it is
# a few milliseconds.
GAP_SHARE, GAP_MS = 0.10, 1.0
# Its time begins before its first request and ends after its last, and at both ends not every slot is taken.
THROUGHPUT_SHARES = 0.4, 1.05


@dataclass(frozen=True)
class Line:
    """One number of a client, ours, and the verdict on the two."""

    client: str
    number: str
    theirs: float
    ours: float | None
    why: str
    ok: bool = True


def lines(report: Reported, counted: Counted, load: Load) -> list[Line]:
    """Return a client's complete report, compared with the server's counts."""
    results = [
        _equal(report, "requests", report.requests, counted.requests),
        _equal(report, "prompt tokens", report.prompt_tokens, counted.prompt_tokens),
        _equal(report, "output tokens", report.output_tokens, counted.output_tokens),
        _gap(report, counted),
    ]
    if report.requests < load.requests:
        expected = f"{load.requests} requests were requested"
        results.append(Line(report.client, "requests", report.requests, load.requests, expected, ok=False))
    if report.chunk_gap:
        name, theirs = report.chunk_gap
        why = "a gap of pieces: several tokens may come in one, an unfinished character in none"
        results.append(Line(report.client, f"{name} (ms)", theirs, counted.between(), why))
    return [*results, _first(report, counted), _throughput(report, counted, load)]


def _equal(report: Reported, number: str, theirs: int, ours: int) -> Line:
    same = theirs == ours
    return Line(report.client, number, theirs, ours, "equal" if same else "NOT EQUAL", same)


def _first(report: Reported, counted: Counted) -> Line:
    ok = report.ttft_ms > 0.9 * counted.ttft_ms
    why = "theirs begins when they send, ours when the request has been read: not less than ours"
    return Line(report.client, "TTFT (ms)", report.ttft_ms, counted.ttft_ms, why if ok else f"NOT {why}", ok)


def _gap(report: Reported, counted: Counted) -> Line:
    name, theirs = report.token_gap
    ours = counted.between()
    ok = math.isfinite(ours) and abs(theirs - ours) <= max(GAP_MS, GAP_SHARE * ours)
    why = f"a request's mean, theirs as pieces arrive; within {GAP_SHARE:.0%} or {GAP_MS:g} ms"
    return Line(report.client, f"{name} (ms)", theirs, ours, why if ok else f"NOT {why}", ok)


def _throughput(report: Reported, counted: Counted, load: Load) -> Line:
    most = counted.at_most(load)
    least, largest = THROUGHPUT_SHARES
    ok = least * most <= report.throughput_tokens_per_s <= largest * most
    why = f"ours: {load.concurrency} slots never empty; theirs has beginning and end in it"
    detail = why if ok else f"NOT {least:.0%} to {largest:.0%} of it; {why}"
    return Line(report.client, "tokens/s", report.throughput_tokens_per_s, most, detail, ok)


def table(results: list[Line]) -> str:
    """Return a table for people."""
    rows = [("client", "its number", "theirs", "ours", "why they differ")]
    rows += [(each.client, each.number, _text(each.theirs), _text(each.ours), each.why) for each in results]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"{client:<{widths[0]}}  {number:<{widths[1]}}  {theirs:>{widths[2]}}  {ours:>{widths[3]}}  {why}"
        for client, number, theirs, ours, why in rows
    )


def _text(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.1f}"
