"""Ranges of a comparison's inputs around the values used, with sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Literal

import msgspec

from laminabench.catalog.entries import packaged
from laminabench.catalog.eras import Era, load_eras

RangeKind = Literal["published", "measured", "assumed", "choice"]


class Span(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Range from low to high, in the unit of its input or as multiples of the value used."""

    low: float
    high: float
    kind: RangeKind
    source: str
    times_here: bool = False

    def around(self, here: float) -> Span:
        """Return the range in the input's unit."""
        if not self.times_here:
            return self
        return msgspec.structs.replace(self, low=self.low * here, high=self.high * here, times_here=False)


class Range(msgspec.Struct, frozen=True):
    """One input's, for every device or system."""

    unit: str
    searched: tuple[float, float] | None  # for a break-even; None where that is solved for
    integer: bool  # only whole numbers
    spans: Mapping[str, Span]

    def of(self, name: str) -> Span:
        """Return the device's or system's own range, else the common one."""
        return self.spans.get(name, self.spans["any"])


def hosts_of_eras(system: str) -> Span | None:
    """Return a system's host milliseconds per iteration across eras; None if it has no eras."""
    eras = [era for era in load_eras().values() if era.system == system]
    return _between({era: (0.0,) if era.host_async else era.host_ms for era in eras}, "host_source")


def limits_of_eras(system: str, limit: Callable[[Era], int]) -> Span | None:
    """Return a system's limits of concurrent requests across eras; None if it has no eras."""
    eras = [era for era in load_eras().values() if era.system == system]
    return _between({era: (float(limit(era)),) for era in eras}, "max_num_seqs_source")


def _between(values: Mapping[Era, tuple[float, ...]], source: str) -> Span | None:
    if not values:
        return None
    every = [value for some in values.values() for value in some]
    sources = "; ".join(f"{era.name}: {getattr(era, source)}" for era in values)
    return Span(min(every), max(every), "published", sources)


@cache
def load_ranges() -> Mapping[str, Range]:
    """Return the ranges by input."""
    return {
        name: Range(
            unit=row["unit"],
            searched=tuple(row["searched"]) if "searched" in row else None,
            integer=row.get("whole", False),
            spans={of: msgspec.convert(span, Span) for of, span in row.items() if isinstance(span, dict)},
        )
        for name, row in packaged("ranges.toml").items()
    }
