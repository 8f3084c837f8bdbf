"""A client's numbers beside ours: what has to be equal, what may differ and by how much, and why it does."""

from __future__ import annotations

import math
from dataclasses import dataclass

from load import Counted, Load, Seen

# A client stamps a piece when it gets to it, and may share the cores with the server. At either end it is
# a few milliseconds.
GAP_SHARE, GAP_MS = 0.10, 1.0
# Its time begins before its first request and ends after its last, and at both ends not every slot is taken.
THROUGHPUT_SHARES = 0.4, 1.05


@dataclass(frozen=True)
class Line:
    """One number of a client, ours, and what is to be said of the two."""

    client: str
    number: str
    theirs: float
    ours: float | None
    why: str
    ok: bool = True


def lines(seen: Seen, counted: Counted, load: Load) -> list[Line]:
    """Everything that a client said, held against what the server counted."""
    found = [
        _equal(seen, "requests", seen.requests, counted.requests),
        _equal(seen, "prompt tokens", seen.prompt_tokens, counted.prompt_tokens),
        _equal(seen, "output tokens", seen.output_tokens, counted.output_tokens),
        _gap(seen, counted),
    ]
    if seen.requests < load.requests:
        asked = f"{load.requests} requests were asked for"
        found.append(Line(seen.client, "requests", seen.requests, load.requests, asked, ok=False))
    if seen.chunk_gap:
        name, theirs = seen.chunk_gap
        why = "a gap of pieces: several tokens may come in one, an unfinished character in none"
        found.append(Line(seen.client, f"{name} (ms)", theirs, counted.between(), why))
    return [*found, _first(seen, counted), _throughput(seen, counted, load)]


def _equal(seen: Seen, number: str, theirs: int, ours: int) -> Line:
    same = theirs == ours
    return Line(seen.client, number, theirs, ours, "equal" if same else "NOT EQUAL", same)


def _first(seen: Seen, counted: Counted) -> Line:
    ok = seen.ttft_ms > 0.9 * counted.ttft_ms
    why = "theirs begins when they send, ours when the request has been read: not less than ours"
    return Line(seen.client, "TTFT (ms)", seen.ttft_ms, counted.ttft_ms, why if ok else f"NOT {why}", ok)


def _gap(seen: Seen, counted: Counted) -> Line:
    name, theirs = seen.token_gap
    ours = counted.between()
    ok = math.isfinite(ours) and abs(theirs - ours) <= max(GAP_MS, GAP_SHARE * ours)
    why = f"a request's mean, theirs as pieces arrive; within {GAP_SHARE:.0%} or {GAP_MS:g} ms"
    return Line(seen.client, f"{name} (ms)", theirs, ours, why if ok else f"NOT {why}", ok)


def _throughput(seen: Seen, counted: Counted, load: Load) -> Line:
    most = counted.at_most(load)
    least, largest = THROUGHPUT_SHARES
    ok = least * most <= seen.throughput_tokens_per_s <= largest * most
    why = f"ours: {load.concurrency} slots never empty; theirs has beginning and end in it"
    said = why if ok else f"NOT {least:.0%} to {largest:.0%} of it; {why}"
    return Line(seen.client, "tokens/s", seen.throughput_tokens_per_s, most, said, ok)


def table(found: list[Line]) -> str:
    """For people."""
    rows = [("client", "its number", "theirs", "ours", "why they differ")]
    rows += [(each.client, each.number, _said(each.theirs), _said(each.ours), each.why) for each in found]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"{client:<{widths[0]}}  {number:<{widths[1]}}  {theirs:>{widths[2]}}  {ours:>{widths[3]}}  {why}"
        for client, number, theirs, ours, why in rows
    )


def _said(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.1f}"
