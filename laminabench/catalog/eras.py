"""Eras of an opponent: its kernels, its limit of requests and its host at a time, each with a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache

from laminabench.catalog.cost_terms import HostCost, Origin
from laminabench.catalog.entries import Table, packaged
from laminabench.catalog.hardware import Device

_LARGE_BYTES = 70 * 2**30


@dataclass(frozen=True, slots=True)
class Era:
    """Deployment assumptions for one system; `others` has those for the systems it is compared with."""

    name: str
    title: str
    system: str
    costs: str  # the cost set of the whole comparison
    costs_source: str
    max_num_seqs: int  # of each data-parallel engine
    max_num_seqs_source: str
    host_source: str
    others: str
    max_num_seqs_small: int | None = None  # on devices that vLLM does not count among the large ones
    # Of an iteration, from the least to the most; the cost set's, if there is none.
    host_ms: tuple[float, ...] = ()
    host_async: bool = False  # of all systems

    @property
    def hosts(self) -> tuple[HostCost, ...]:
        """The host costs, one for each end of the range."""
        return tuple(HostCost(ms / 1000, 0.0, Origin("published", self.host_source)) for ms in self.host_ms)

    def limit_on(self, device: Device) -> int:
        """Return the limit of concurrent requests of an engine, by the rule of vLLM's code."""
        large = device.memory_bytes >= _LARGE_BYTES and "a100" not in device.name
        return self.max_num_seqs if large else self.max_num_seqs_small or self.max_num_seqs

    def describe(self) -> Table:
        """Return the `--json` entry."""
        return {**asdict(self), "host_ms": list(self.host_ms)}


@cache
def load_eras() -> Mapping[str, Era]:
    """Return the eras by name, oldest first."""
    return {
        name: Era(name, **{**row, "host_ms": tuple(row.get("host_ms", ()))})
        for name, row in packaged("eras.toml").items()
    }


def limit_today(device: Device) -> int:
    """Return the limit of concurrent requests of an engine of vLLM of today."""
    *_, newest = load_eras().values()
    return newest.limit_on(device)


def schedules_ahead_by_default(costs: str) -> bool:
    """Return whether servers whose kernels a cost set has prepare an iteration during the previous one."""
    return any(era.host_async for era in load_eras().values() if era.costs == costs)
