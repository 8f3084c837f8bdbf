"""DRAMs by their timings: what is behind a memory's bandwidth, and where each number is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from laminabench.catalog.entries import Table, packaged

Kind = Literal["data sheet", "simulator", "assumed"]


@dataclass(frozen=True, slots=True)
class Timing:
    value: float
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class DramKind:
    """DRAM timings by the names of the C++ code, nanoseconds and bytes."""

    name: str
    title: str
    timings: Mapping[str, Timing]

    def native(self) -> Table:
        return {name: timing.value for name, timing in self.timings.items()}


@cache
def load_drams() -> Mapping[str, DramKind]:
    return {name: _dram(name, row) for name, row in packaged("drams.toml").items()}


def _dram(name: str, row: Table) -> DramKind:
    timings = {key: Timing(**value) for key, value in row.items() if key != "title"}
    return DramKind(name, row["title"], timings)
