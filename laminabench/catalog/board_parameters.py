"""The parameters of a board as files and reports name them, with their units, and what each may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MIB = 2**20

Value = float | bool | str


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its name carries its unit, the board's field has bytes and seconds."""

    field: str
    side: str | None  # "hbm" or "lpddr", where it is a memory's field

    unit: str = ""

    def shown(self, value: Value) -> Value:
        """The field's value in the parameter's unit."""
        return value

    def stored(self, value: Value) -> Value:
        """The other way round."""
        return value

    def wanted(self, value: object) -> str | None:
        """What a value would have to be; None if it is."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Number(Parameter):
    """A float of some unit."""

    scale: float = 1.0
    zero: bool = False
    # Beyond these a number is a slip, and times or pages could not be counted.
    least: float = 1e-3
    most: float = 1e6

    def shown(self, value: Value) -> Value:
        return float(f"{float(value) / self.scale:.12g}")  # 32 ns stay 32, not 32.000000000000004

    def stored(self, value: Value) -> Value:
        return float(value) * self.scale

    def wanted(self, value: object) -> str | None:
        if isinstance(value, int | float) and not isinstance(value, bool) and self._allows(value):
            return None
        return f"a number from {0 if self.zero else self.least:g} to {self.most:g}"

    def _allows(self, value: float) -> bool:
        return self.least <= value <= self.most or (self.zero and 0 <= value <= self.most)


@dataclass(frozen=True, slots=True)
class Count(Parameter):
    """A whole number of things, at least one."""

    most: int = 1_000_000

    def wanted(self, value: object) -> str | None:
        right = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= self.most
        return None if right else f"a whole number from 1 to {self.most}"


@dataclass(frozen=True, slots=True)
class Flag(Parameter):
    def wanted(self, value: object) -> str | None:
        return None if isinstance(value, bool) else "true or false"


@dataclass(frozen=True, slots=True)
class Choice(Parameter):
    words: tuple[str, ...] = ()

    def wanted(self, value: object) -> str | None:
        return None if value in self.words else " or ".join(f'"{word}"' for word in self.words)


def _memory(side: str) -> dict[str, Parameter]:
    return {
        f"{side}_capacity_gb": Number("capacity_bytes", side, "GB", 1e9),
        f"{side}_bandwidth_gb_per_s": Number("bandwidth_bytes_per_s", side, "GB/s", 1e9),
        f"{side}_latency_ns": Number("latency_s", side, "ns", 1e-9, zero=True),
        f"{side}_chips": Count("chips", side, "chips"),
    }


PARAMETERS: Mapping[str, Parameter] = {
    **_memory("hbm"),
    **_memory("lpddr"),
    "link_gb_per_s": Number("link_bytes_per_s", None, "GB/s", 1e9),
    "cores": Count("cores", None, "cores a chip"),
    "clock_ghz": Number("clock_hz", None, "GHz", 1e9),
    "mm_size": Count("mm_size", None, "rows and columns"),
    "mv_rows": Count("mv_rows", None, "rows"),
    "mv_width": Count("mv_width", None, "elements"),
    "vector_width": Count("vector_width", None, "elements a cycle"),
    "spm_mib": Number("spm_bytes", None, "MiB", MIB),
    "launch_us": Number("launch_s", None, "us", 1e-6, zero=True),
    "kernels": Count("kernels", None, "a layer"),
    "page_mib": Number("page_bytes", None, "MiB", MIB),
    "tlb_entries": Count("tlb_entries", None, "a chip"),
    "tlb_miss_ns": Number("tlb_miss_s", None, "ns", 1e-9, zero=True),
    "tlb_misses_at_once": Count("tlb_misses_at_once", None, "a chip"),
    "dram_efficiency": Number("dram_efficiency", None, "of the peak bandwidth", most=1),
    "weight_load": Choice("weight_load", None, "", ("before", "behind")),
    "reread_kv": Flag("reread_kv", None),
    "hierarchical_overlap": Number("hierarchical_overlap", None, "of the shorter part", zero=True, most=1),
    "flexgen_share": Number("flexgen_share", None, "of weights and of KV in HBM", zero=True, most=1),
    "hbm_devices": Count("hbm_devices", None, "devices"),
    "hbm_barrier_us": Number("hbm_barrier_s", None, "us", 1e-6, zero=True),
    "memory_power_ratio": Number("memory_power_ratio", None, "of LPDDR's power"),
}

# What is on a board and chips are made of. The others are software, or what the paper leaves open of these.
HARDWARE = (
    *(*_memory("hbm"), *_memory("lpddr"), "link_gb_per_s", "cores", "clock_ghz"),
    *("mm_size", "mv_rows", "mv_width", "vector_width", "spm_mib", "tlb_entries"),
)
