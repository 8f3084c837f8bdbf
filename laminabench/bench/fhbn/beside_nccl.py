"""Round trips of a GPU's channels beside NCCL's on the same machine. Not verified on hardware."""

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
TARGET_RATIO = 2.0  # of NCCL's round trip over a channel's
SECONDS = 8.0


@dataclass(frozen=True)
class Nccl:
    """NCCL's round trips by size, between two processes with a GPU each; or why there are none."""

    trips_s: Mapping[int, Spread] = field(default_factory=dict)
    missing: str = ""


def trips(seconds: float = SECONDS) -> Nccl:
    """Measured here and now."""
    here = Place.here()
    if why := nccl.missing(here, here):
        return Nccl(missing=why)
    from laminabench.bench.fhbn.pingpong import run

    try:
        return of_rounds(run(Engines(("nccl",), {}, None), SIZES, seconds).rounds)
    except Exception as error:  # whatever it is: what channels take is still worth having
        return Nccl(missing=f"{type(error).__name__}: {error}".partition("\n")[0])


def of_rounds(rounds: Sequence[Round]) -> Nccl:
    """By size, of each round its median."""
    found: dict[int, list[float]] = {}
    for one in rounds:
        found.setdefault(int(str(one["bytes"])), []).append(float(str(one["rtt_us_p50"])) / 1e6)
    return Nccl({size: spread(times) for size, times in found.items()})


def compared(rows: Sequence[Mapping[str, Any]], found: Nccl) -> list[Row]:
    """Of each engine and judged size: a round trip from stream to stream, and NCCL's over it."""
    return [
        _row(row["engine"], row["bytes"], row["one_way_s"]["channel"], found.trips_s.get(row["bytes"]))
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


def text(rows: Sequence[Row], found: Nccl) -> list[Text]:
    """For people."""
    titles = ("<engine", "<size", "stream to stream and back", "NCCL's", "NCCL's / ours")
    why = [f"nothing to compare with from NCCL: {found.missing}"] if found.missing else []
    return [judged((*titles, f"<target {TARGET_RATIO:g}"), rows), *why]
