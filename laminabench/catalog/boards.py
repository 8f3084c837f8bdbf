"""Boards with two memories: what one has, where each number is from, and how to vary it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from laminabench.catalog.board_parameters import HARDWARE, PARAMETERS, Parameter, Value
from laminabench.catalog.names import ALL, pick
from laminabench.catalog.toml_file import Table, from_path, packaged
from laminabench.errors import UserError
from laminabench.nearest import nearest

NS = 1e-9
# Tables of a simulated board that has more take more than half a gigabyte.
MOST_PAGES = 2**25

Kind = Literal["paper", "fitted", "assumed"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a parameter's value is from."""

    value: Value  # in the unit of the parameter's name
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class BoardMemory:
    """One memory, and the accelerator chips at it."""

    capacity_bytes: float
    bandwidth_bytes_per_s: float  # peak
    latency_s: float
    chips: int


@dataclass(frozen=True, slots=True)
class Board:
    """Two memories, each with chips of its own, on one board; `dataclasses.replace` varies it."""

    name: str
    title: str
    hbm: BoardMemory
    lpddr: BoardMemory
    link_bytes_per_s: float
    # A chip
    cores: int
    clock_hz: float
    mm_size: int
    mv_rows: int
    mv_width: int
    vector_width: int
    spm_bytes: float
    launch_s: float
    kernels: int
    # Address translation
    page_bytes: float
    tlb_entries: int
    tlb_miss_s: float
    tlb_misses_at_once: int
    # What the paper leaves open
    dram_efficiency: float
    weight_load: str  # "before" its rows, or "behind" the tile before
    reread_kv: bool
    hierarchical_overlap: float
    flexgen_share: float
    hbm_devices: int
    hbm_barrier_s: float
    memory_power_ratio: float  # of an HBM device to the LPDDR memory
    origins: Mapping[str, Origin] = field(default_factory=dict, repr=False, compare=False, hash=False)

    def native(self) -> dict[str, Any]:
        """The board as the C++ side takes it: its field names, bytes and nanoseconds."""
        return {
            "hbm": _native_memory(self.hbm),
            "lpddr": _native_memory(self.lpddr),
            "link_bytes_per_ns": self.link_bytes_per_s / 1e9,
            "cycle_ns": 1e9 / self.clock_hz,
            "launch_ns": self.launch_s / NS,
            "tlb_miss_ns": self.tlb_miss_s / NS,
            "hbm_barrier_ns": self.hbm_barrier_s / NS,
            **{name: getattr(self, name) for name in _NATIVE_AS_IT_IS},
            "page_bytes": float(int(self.page_bytes)),
        }

    def describe(self) -> dict[str, Any]:
        """Every parameter by name, in the unit of its name, for manifests."""
        shown = {name: self._shown(parameter) for name, parameter in PARAMETERS.items()}
        return {"name": self.name, "title": self.title, **shown}

    def assumptions(self) -> list[dict[str, Any]]:
        """Every parameter with its value, its unit, and where it is from."""
        return [
            {"name": name, "value": self._shown(parameter), "unit": parameter.unit}
            | self._origin(name, self._shown(parameter))
            for name, parameter in PARAMETERS.items()
        ]

    def bought_as(self, other: Board) -> bool:
        """Whether it is the same hardware, whatever is assumed of how that works: it costs as much."""
        return all(self._shown(PARAMETERS[name]) == other._shown(PARAMETERS[name]) for name in HARDWARE)

    def _shown(self, parameter: Parameter) -> Value:
        holder = self if parameter.side is None else getattr(self, parameter.side)
        return parameter.shown(getattr(holder, parameter.field))

    def _origin(self, name: str, value: Value) -> dict[str, str]:
        known = self.origins[name]
        if known.value != value:
            return {"kind": "assumed", "source": f"varied; {known.value} is {known.kind}: {known.source}"}
        return {"kind": known.kind, "source": known.source}


_NATIVE_AS_IT_IS = (
    *("cores", "mm_size", "mv_rows", "mv_width", "vector_width", "spm_bytes", "kernels"),
    *("tlb_entries", "tlb_misses_at_once"),
    *("dram_efficiency", "weight_load", "reread_kv", "hierarchical_overlap", "hbm_devices"),
)


@cache
def load_boards() -> Mapping[str, Board]:
    """The catalogue's boards, by name."""
    rows = packaged("boards.toml")
    return {name: _board(name, row["title"], _origins(row, rows)) for name, row in rows.items()}


# In the order of the paper's table 4.
NAMES: tuple[str, ...] = (
    *("h2m2", "hbmcap-less", "hbmcap-more", "hbmbw-less", "hbmbw-more"),
    *("lpddrbw-less", "lpddrbw-more", "hbmchip-more", "lpddrchip-more"),
)


def board(name: str) -> Board:
    """The board of this name in the catalogue, or the one that a TOML file describes.

    Such a file names a `base` of the catalogue and gives parameters their own values, one a line, as in
    `hbm_capacity_gb = 144`.
    """
    if name.endswith(".toml") or "/" in name:
        return _from_file(Path(name))
    return pick("board", name, load_boards(), hint="A path that ends in .toml is read as a board of yours.")


def _from_file(path: Path) -> Board:
    given = from_path(path)
    base = given.pop("base", "h2m2")
    title = given.pop("title", f"board of {path.name}")
    if not isinstance(base, str) or not isinstance(title, str):
        raise UserError("board-file-bad-title", f"{path}: base and title are names, written in quotes")
    origins = dict(pick("board", base, load_boards()).origins)
    for name, value in given.items():
        if name not in PARAMETERS:
            raise UserError(
                "board-unknown-parameter",
                f"{path}: a board has no parameter {name!r}; {nearest(name, PARAMETERS, ALL)}",
            )
        wanted = PARAMETERS[name].wanted(value)
        if wanted:
            raise UserError("board-bad-parameter", f"{path}: {name} is {value!r} but must be {wanted}")
        origins[name] = Origin(value, "assumed", f"given in {path.name}")
    made = _board(path.stem, title, origins)
    pages = (made.hbm.capacity_bytes + made.lpddr.capacity_bytes) / made.page_bytes
    if pages > MOST_PAGES:
        raise UserError(
            "board-too-many-pages",
            f"{path}: {pages:.2g} pages are more than {MOST_PAGES}; take a larger page_mib",
        )
    return made


def _origins(row: Table, rows: Table) -> dict[str, Origin]:
    """A row's parameters over those of its base."""
    inherited = _origins(rows[row["base"]], rows) if "base" in row else {}
    own = {name: Origin(**row[name]) for name in row if name in PARAMETERS}
    return inherited | own


def _board(name: str, title: str, origins: Mapping[str, Origin]) -> Board:
    own: dict[str, Any] = {}
    sides: dict[str, dict[str, Any]] = {"hbm": {}, "lpddr": {}}
    for key, parameter in PARAMETERS.items():
        fields = own if parameter.side is None else sides[parameter.side]
        fields[parameter.field] = parameter.stored(origins[key].value)
    memories = {side: BoardMemory(**values) for side, values in sides.items()}
    return Board(name=name, title=title, hbm=memories["hbm"], lpddr=memories["lpddr"], **own, origins=origins)


def _native_memory(memory: BoardMemory) -> dict[str, Any]:
    return {
        "capacity_bytes": memory.capacity_bytes,
        "bytes_per_ns": memory.bandwidth_bytes_per_s / 1e9,
        "latency_ns": memory.latency_s / NS,
        "chips": memory.chips,
    }
