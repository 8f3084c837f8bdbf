"""Comparison of round trips of a GPU's channels with NCCL's on the same machine. Not verified on hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lamina.fhbn.control import Place
from laminabench.bench.fhbn import nccl
from laminabench.bench.fhbn.options import Engines
from laminabench.bench.fhbn.results import Round, size_text, starred, us_text
from laminabench.bench.frame import Row, Spread, Text, judged, spread

SIZES = (64, 16 << 20)
TARGET_RATIO = 2.0  # NCCL's round trip over a channel's
SECONDS = 8.0


@dataclass(frozen=True)
class Nccl:
    """NCCL's round trips by size, between two processes with a GPU each; or why there are none."""

    trips_s: Mapping[int, Spread] = field(default_factory=dict)
    missing: str = ""


def trips() -> Nccl:
    """Measure NCCL's round trips on this machine."""
    here = Place.here()
    if why := nccl.missing(here, here):
        return Nccl(missing=why)
    from laminabench.bench.fhbn.pingpong import run

    try:
        return of_rounds(run(Engines(("nccl",), {}, None), SIZES, SECONDS).rounds)
    except Exception as error:  # any: the channels' own times are still useful
        return Nccl(missing=f"{type(error).__name__}: {error}".partition("\n")[0])


def of_rounds(rounds: Sequence[Round]) -> Nccl:
    """Return the spread of the rounds' medians, by size."""
    trips_s: dict[int, list[float]] = {}
    for one in rounds:
        trips_s.setdefault(int(str(one["bytes"])), []).append(float(str(one["rtt_us_p50"])) / 1e6)
    return Nccl({size: spread(times) for size, times in trips_s.items()})


def compared(rows: Sequence[Mapping[str, Any]], nccl_trips: Nccl) -> list[Row]:
    """Return, for each engine and judged size, the round trip between streams and NCCL's over it."""
    return [
        _row(row["engine"], row["bytes"], row["one_way_s"]["channel"], nccl_trips.trips_s.get(row["bytes"]))
        for row in rows
        if row["bytes"] in SIZES and "channel" in row["one_way_s"]
    ]


def _row(engine: str, size: int, one_way: Spread, theirs: Spread | None) -> Row:
    ours = Spread(2 * one_way.median, 2 * one_way.min, 2 * one_way.max)
    ratio = theirs.median / ours.median if theirs else None
    facts = {
        "engine": engine,
        "bytes": size,
        "round_trip_s": ours,
        "nccl_s": theirs,
        "ratio": ratio,
        "target_ratio": TARGET_RATIO,
    }
    cells = (
        *(starred(engine), size_text(size), us_text(ours.median * 1e6)),
        *(us_text(theirs.median * 1e6) if theirs else "-", f"{ratio:.2f}" if ratio else "-"),
    )
    return Row(facts, cells, None if ratio is None else ratio >= TARGET_RATIO)


def text(rows: Sequence[Row], nccl_trips: Nccl) -> list[Text]:
    """Return the table for people."""
    titles = ("<engine", "<size", "stream to stream and back", "NCCL's", "NCCL's / ours")
    why = [f"nothing to compare with from NCCL: {nccl_trips.missing}"] if nccl_trips.missing else []
    return [judged((*titles, f"<target {TARGET_RATIO:g}"), rows), *why]
