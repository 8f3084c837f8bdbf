"""Boards with two memories: what one has, where each number is from, and how to vary it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

from laminabench.catalog.entries import ALL, Table, from_path, packaged, pick
from laminabench.util.errors import UserError
from laminabench.util.suggest import nearest

NS = 1e-9
# Tables of a simulated board that has more take more than half a gigabyte.
MOST_PAGES = 2**25

Kind = Literal["paper", "fitted", "assumed"]
MIB = 2**20
Value = float | bool | str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A board parameter: its name carries its unit, the board's field has bytes and seconds."""

    unit: str = ""
    name: str = ""  # where it is not the field's
    scale: float = 1.0
    zero: bool = False  # whether a number may be 0
    # Beyond these a number is a slip, and times or pages could not be counted.
    least: float = 1e-3
    most: float = 1e6
    words: tuple[str, ...] = ()
    # Filled in by `_declared`.
    field: str = ""
    kind: type[Value] = float  # an int is at least one; a str is one of the words
    side: str | None = None  # "hbm" or "lpddr", where it is a memory's field

    def shown(self, value: Value) -> Value:
        """Return the field's value in the parameter's unit."""
        # 32 ns stay 32, not 32.000000000000004.
        return float(f"{float(value) / self.scale:.12g}") if self.kind is float else value

    def stored(self, value: Value) -> Value:
        """Return the parameter's value in the field's unit."""
        return float(value) * self.scale if self.kind is float else value

    def requirement(self, value: object) -> str | None:
        """Return what a value has to be, or None if it is."""
        if self.kind is str:
            return None if value in self.words else " or ".join(f'"{word}"' for word in self.words)
        if self.kind is bool:
            return None if isinstance(value, bool) else "true or false"
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
        if self.kind is int:
            right = isinstance(number, int) and 1 <= number <= self.most
            return None if right else f"a whole number from 1 to {self.most:.0f}"
        right = self.least <= number <= self.most or (self.zero and 0 <= number <= self.most)
        return None if right else f"a number from {0 if self.zero else self.least:g} to {self.most:g}"


@dataclass(frozen=True, slots=True)
class Origin:
    value: Value  # in the unit of the parameter's name
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class BoardMemory:
    """A memory of a board, and the accelerator chips at it."""

    capacity_bytes: Annotated[float, Parameter("GB", "capacity_gb", 1e9)]
    bandwidth_bytes_per_s: Annotated[float, Parameter("GB/s", "bandwidth_gb_per_s", 1e9)]  # peak
    latency_s: Annotated[float, Parameter("ns", "latency_ns", NS, zero=True)]
    chips: Annotated[int, Parameter("chips")]

    def native(self) -> Table:
        return {
            "capacity_bytes": self.capacity_bytes,
            "bytes_per_ns": self.bandwidth_bytes_per_s / 1e9,
            "latency_ns": self.latency_s / NS,
            "chips": self.chips,
        }


@dataclass(frozen=True, slots=True)
class Board:
    """A board of two memories, each with chips of its own; `dataclasses.replace` varies it."""

    name: str
    title: str
    hbm: BoardMemory
    lpddr: BoardMemory
    link_bytes_per_s: Annotated[float, Parameter("GB/s", "link_gb_per_s", 1e9)]
    # A chip
    cores: Annotated[int, Parameter("cores a chip")]
    clock_hz: Annotated[float, Parameter("GHz", "clock_ghz", 1e9)]
    mm_size: Annotated[int, Parameter("rows and columns")]
    mv_rows: Annotated[int, Parameter("rows")]
    mv_width: Annotated[int, Parameter("elements")]
    vector_width: Annotated[int, Parameter("elements a cycle")]
    spm_bytes: Annotated[float, Parameter("MiB", "spm_mib", MIB)]
    launch_s: Annotated[float, Parameter("us", "launch_us", 1e-6, zero=True)]
    kernels: Annotated[int, Parameter("a layer")]
    # Address translation
    page_bytes: Annotated[float, Parameter("MiB", "page_mib", MIB)]
    tlb_entries: Annotated[int, Parameter("a chip")]
    tlb_miss_s: Annotated[float, Parameter("ns", "tlb_miss_ns", NS, zero=True)]
    tlb_misses_at_once: Annotated[int, Parameter("a chip")]
    # What the paper leaves open
    dram_efficiency: Annotated[float, Parameter("of the peak bandwidth", most=1)]
    weight_load: Annotated[str, Parameter(words=("before", "behind"))]  # its rows, or the tile before
    reread_kv: Annotated[bool, Parameter()]
    hierarchical_overlap: Annotated[float, Parameter("of the shorter part", zero=True, most=1)]
    flexgen_share: Annotated[float, Parameter("of weights and of KV in HBM", zero=True, most=1)]
    hbm_devices: Annotated[int, Parameter("devices")]
    hbm_barrier_s: Annotated[float, Parameter("us", "hbm_barrier_us", 1e-6, zero=True)]
    memory_power_ratio: Annotated[float, Parameter("of LPDDR's power")]  # of an HBM device
    origins: Mapping[str, Origin] = field(default_factory=dict, repr=False, compare=False, hash=False)

    def native(self) -> Table:
        """Return the board as the C++ code takes it: its field names, bytes and nanoseconds."""
        return {
            "hbm": self.hbm.native(),
            "lpddr": self.lpddr.native(),
            "link_bytes_per_ns": self.link_bytes_per_s / 1e9,
            "cycle_ns": 1e9 / self.clock_hz,
            "launch_ns": self.launch_s / NS,
            "tlb_miss_ns": self.tlb_miss_s / NS,
            "hbm_barrier_ns": self.hbm_barrier_s / NS,
            **{name: getattr(self, name) for name in _NATIVE_AS_IT_IS},
            "page_bytes": float(int(self.page_bytes)),
        }

    def describe(self) -> Table:
        """Return every parameter by name, in the unit of its name."""
        shown = {name: self._shown(parameter) for name, parameter in PARAMETERS.items()}
        return {"name": self.name, "title": self.title, **shown}

    def assumptions(self) -> list[Table]:
        """Return every parameter with its value, unit and source."""
        return [
            {"name": name, "value": self._shown(parameter), "unit": parameter.unit}
            | self._origin(name, self._shown(parameter))
            for name, parameter in PARAMETERS.items()
        ]

    def bought_as(self, other: Board) -> bool:
        """Return whether it is the same hardware, whatever is assumed of how that works: it costs as much."""
        return all(self._shown(PARAMETERS[name]) == other._shown(PARAMETERS[name]) for name in HARDWARE)

    def _shown(self, parameter: Parameter) -> Value:
        holder = self if parameter.side is None else getattr(self, parameter.side)
        return parameter.shown(getattr(holder, parameter.field))

    def _origin(self, name: str, value: Value) -> dict[str, str]:
        known = self.origins[name]
        if known.value != value:
            return {"kind": "assumed", "source": f"varied; {known.value} is {known.kind}: {known.source}"}
        return {"kind": known.kind, "source": known.source}


def _declared(kind: type[BoardMemory | Board], side: str | None = None) -> dict[str, Parameter]:
    """Return the parameters that a class's fields declare, by name."""
    prefix, parameters = f"{side}_" if side else "", {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for of in getattr(hint, "__metadata__", ()):
            own = replace(of, field=name, kind=hint.__origin__, side=side)
            parameters[f"{prefix}{of.name or name}"] = own
    return parameters


_MEMORIES = _declared(BoardMemory, "hbm") | _declared(BoardMemory, "lpddr")
PARAMETERS: Mapping[str, Parameter] = _MEMORIES | _declared(Board)

# What is on a board and chips are made of. The others are software, or what the paper leaves open of these.
HARDWARE = (
    *(*_MEMORIES, "link_gb_per_s", "cores", "clock_ghz"),
    *("mm_size", "mv_rows", "mv_width", "vector_width", "spm_mib", "tlb_entries"),
)
_NATIVE_AS_IT_IS = (
    *("cores", "mm_size", "mv_rows", "mv_width", "vector_width", "spm_bytes", "kernels"),
    *("tlb_entries", "tlb_misses_at_once"),
    *("dram_efficiency", "weight_load", "reread_kv", "hierarchical_overlap", "hbm_devices"),
)


@cache
def load_boards() -> Mapping[str, Board]:
    rows = packaged("boards.toml")
    return {name: _board(name, row["title"], _origins(row, rows)) for name, row in rows.items()}


# In the order of the paper's table 4.
NAMES: tuple[str, ...] = (
    *("h2m2", "hbmcap-less", "hbmcap-more", "hbmbw-less", "hbmbw-more"),
    *("lpddrbw-less", "lpddrbw-more", "hbmchip-more", "lpddrchip-more"),
)


def board(name: str) -> Board:
    """Return the catalogue's board of this name, or the one that a TOML file describes.

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
        requirement = PARAMETERS[name].requirement(value)
        if requirement:
            raise UserError("board-bad-parameter", f"{path}: {name} is {value!r} but must be {requirement}")
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
    """Return a row's parameters over those of its base."""
    inherited = _origins(rows[row["base"]], rows) if "base" in row else {}
    own = {name: Origin(**row[name]) for name in row if name in PARAMETERS}
    return inherited | own


def _board(name: str, title: str, origins: Mapping[str, Origin]) -> Board:
    own: Table = {}
    by_side: dict[str, Table] = {"hbm": {}, "lpddr": {}}
    for key, parameter in PARAMETERS.items():
        fields = own if parameter.side is None else by_side[parameter.side]
        fields[parameter.field] = parameter.stored(origins[key].value)
    memories = {side: BoardMemory(**values) for side, values in by_side.items()}
    return Board(name=name, title=title, hbm=memories["hbm"], lpddr=memories["lpddr"], **own, origins=origins)
