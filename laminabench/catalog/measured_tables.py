"""Measured times in files: arrays of the packaged sets, JSON in a user's TOML, and TOML for grids.

The arrays are `.npz` files without pickles, next to the TOML that lists their tables and sources. For each
kind of curve NAME, `NAME.curves` has a row for each curve (its key, the index of its table, the number of
samples, the error in percent and the number of points) and `NAME.points` its columns in SI units, one curve
after the other. `attention.grids` has a row for each grid, and `attention.points` its axes and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import IO, Any, NamedTuple, get_args, get_type_hints

import msgspec
import numpy as np

from laminabench.catalog.cost_keys import HeadsKey
from laminabench.catalog.cost_terms import US, Coefficient, Float64, Origin, coefficients
from laminabench.catalog.entries import Table
from laminabench.catalog.measured import Arrays, AttentionGrids, Grid, Measured

Numbers = tuple[float, ...]
# The grids of attention, and the unit of a value in TOML: shares have none.
GRIDS = {"decode": US, "prompt": US, "mixed": US, "skew": 1.0, "mixed_skew": 1.0}
# How many axes each may have: the simulator looks up a point of as many coordinates. One is of even batches.
AXES = {"decode": (2,), "prompt": (2,), "mixed": (4,), "skew": (1, 2), "mixed_skew": (1, 3)}
MAX_AXES = 4
MOST = 1e15  # of a number in any unit: sums and products of a few are finite


class BadNumberError(ValueError):
    """A number that a cost set cannot have."""


class CurveKind(NamedTuple):
    """A mapping of `Measured` from keys to curves or lines."""

    key: type[Any]
    arrays: type[Arrays]

    @property
    def columns(self) -> list[Coefficient]:
        """The axis first."""
        return list(coefficients(self.arrays).values())

    def make(self, columns: Sequence[Float64], origin: Origin) -> Arrays:
        """Build a curve; a ValueError for columns that do not describe one."""
        axis, *values = columns
        if any(len(each) != len(axis) for each in values):
            raise ValueError("there must be a time for each number of rows")
        if (axis[1:] <= axis[:-1]).any():
            raise ValueError("rows must be in ascending order")
        return self.arrays(*columns, origin)


@cache
def kinds() -> Mapping[str, CurveKind]:
    """Return every kind of curve, by its name in `Measured`."""
    hints = {name: get_args(hint) for name, hint in get_type_hints(Measured).items()}
    return {
        name: CurveKind(*types) for name, types in hints.items() if types and issubclass(types[1], Arrays)
    }


# Arrays of the packaged sets


def read_arrays(file: IO[bytes], tables: Sequence[Table]) -> dict[str, dict[Any, Any]]:
    """Read the mappings of `Measured` from an .npz file; `tables` say where its curves are from."""

    def origin(table: int, samples: int, error: float) -> Origin:
        about = tables[table]
        errors = {about["error"]: error} if about["error"] else {}
        return Origin(about["kind"], about["source"], about["range"], errors, samples)

    with np.load(file, allow_pickle=False) as arrays:
        mappings: dict[str, dict[Any, Any]] = {
            name: _curves(kind, arrays[f"{name}.curves"], arrays[f"{name}.points"], origin)
            for name, kind in kinds().items()
            if f"{name}.curves" in arrays
        }
        if "attention.grids" in arrays:
            mappings["attention"] = _grids(arrays["attention.grids"], arrays["attention.points"], origin)
    return mappings


def _curves(
    kind: CurveKind, rows: np.ndarray, points: Float64, origin: Callable[[int, int, float], Origin]
) -> dict[Any, Arrays]:
    curves: dict[Any, Arrays] = {}
    build: Any = kind.arrays
    first = 0
    for *key, table, samples, error, count in rows.tolist():
        columns = points[:, first : first + count]
        curves[kind.key(*key)] = build(*columns, origin(table, samples, error))
        first += count
    return curves


def _grids(
    rows: np.ndarray, points: Float64, origin: Callable[[int, int, float], Origin]
) -> dict[HeadsKey, AttentionGrids]:
    grids: dict[HeadsKey, dict[str, Grid]] = {}
    origins: dict[HeadsKey, Origin] = {}
    first = 0

    def take(count: int) -> Float64:
        nonlocal first
        first += count
        return points[first - count : first]

    for *key, table, samples, error, name, shape in rows.tolist():
        sizes = [int(size) for size in shape if size]
        axes = tuple(take(size) for size in sizes)
        origins.setdefault(HeadsKey(*key), origin(table, samples, error))
        grids.setdefault(HeadsKey(*key), {})[name] = Grid(axes, take(int(np.prod(sizes))).reshape(sizes))
    return {key: AttentionGrids(origin=origins[key], **parts) for key, parts in grids.items()}


# Curves in a user's TOML, as one text of JSON with a curve a line: TOML takes far longer to read


class CurveRow(msgspec.Struct, array_like=True):
    """A curve or lines: key, index of the axis, times, index of the source."""

    key: list[str | int]
    axis: int
    us: Numbers
    source: int
    samples: int
    error: float
    per_token_ns: Numbers = ()  # of lines, whose `us` is the fixed part
    unstable: bool = False


class CurveSource(msgspec.Struct):
    """Source of curves, and of their errors."""

    kind: Any
    source: str
    range: str
    error: str


class Packed(msgspec.Struct):
    """All curves of a set."""

    sources: list[CurveSource]
    axes: list[Numbers]
    gemm: list[CurveRow] = []
    operators: list[CurveRow] = []
    experts: list[CurveRow] = []
    lines: list[CurveRow] = []
    latent: list[CurveRow] = []
    tiles: list[CurveRow] = []


def packed(measured: Measured) -> str:
    """Write all curves and lines as text."""
    result = Packed([], [])
    sources: dict[tuple[Any, ...], int] = {}
    axes: dict[Numbers, int] = {}
    for name, kind in kinds().items():
        for key, each in sorted(getattr(measured, name).items()):
            axis, us, *per_token = (
                _short(getattr(each, column) / declared.unit)
                for column, declared in coefficients(kind.arrays).items()
            )
            origin: Origin = each.origin
            error_of, error = next(iter(origin.errors.items()), ("", 0.0))
            source = sources.setdefault((origin.kind, origin.source, origin.range, error_of), len(sources))
            at = axes.setdefault(axis, len(axes))
            row = CurveRow(list(key), at, us, source, origin.samples, float(f"{error:.4g}"))
            row.per_token_ns, row.unstable = per_token[0] if per_token else (), origin.unstable
            getattr(result, name).append(row)
    result.sources = [CurveSource(*about) for about in sources]
    result.axes = list(axes)
    parts = []
    for field in result.__struct_fields__:
        rows = ",\n".join(msgspec.json.encode(row).decode() for row in getattr(result, field))
        parts.append(f'"{field}": [\n{rows}\n]')
    return "{" + ",\n".join(parts) + "}\n"


def unpacked(text: str) -> dict[str, dict[Any, Any]]:
    """Parse the text that `packed` wrote into the mappings of `Measured`; a ValueError if it is broken."""
    parsed = msgspec.json.decode(text, type=Packed)
    axes = [np.array(axis, np.float64) for axis in parsed.axes]

    def curve(kind: CurveKind, row: CurveRow) -> Arrays:
        about = parsed.sources[row.source]
        errors = {about.error: row.error} if about.error else {}
        origin = Origin(about.kind, about.source, about.range, errors, row.samples, row.unstable)
        _, *columns = kind.columns
        values = [
            np.array(numbers, np.float64) * column.unit
            for numbers, column in zip((row.us, row.per_token_ns), columns, strict=False)
        ]
        if any(each.size and each.min() < 0 for each in values):
            raise ValueError(f"{row.key} has a time below 0")
        return kind.make([axes[row.axis], *values], origin)

    return {
        name: {kind.key(*row.key): curve(kind, row) for row in getattr(parsed, name)}
        for name, kind in kinds().items()
    }


def _short(values: Float64) -> Numbers:
    """Round times to four digits, as they repeat no better; whole numbers are written without a point."""
    rounded = (float(f"{value:.4g}" if value < 10000 else f"{value:.0f}") for value in values.tolist())
    return tuple(int(value) if value.is_integer() else value for value in rounded)


# Tables of TOML, in which numbers in a row are one string: short to write and fast to read


def curve_of(kind: CurveKind, row: Table, origin: Origin) -> tuple[Any, Arrays]:
    """Parse one table of a curve: sets written before there was `packed` have them."""
    columns = [numbers_of(row[column.toml]) * column.unit for column in kind.columns]
    return kind.key(*(row[name] for name in kind.key._fields)), kind.make(columns, origin)


def grids_of(row: Table, origin: Origin) -> tuple[HeadsKey, AttentionGrids]:
    """Parse the grids of one worker."""

    def grid(table: Table, unit: float, counts: Sequence[int]) -> Grid:
        axes = tuple(map(numbers_of, table["axes"]))
        if len(axes) not in counts or any((np.diff(axis) <= 0).any() for axis in axes):
            raise ValueError(
                f"a grid of {len(axes)} axes needs {max(counts)}, with points in ascending order"
            )
        return Grid(axes, numbers_of(table["values"]).reshape([len(axis) for axis in axes]) * unit)

    grids = {name: grid(row[name], unit, AXES[name]) for name, unit in GRIDS.items()}
    return HeadsKey(*(row[name] for name in HeadsKey._fields)), AttentionGrids(origin=origin, **grids)


def grid_lines(grids: AttentionGrids) -> Iterable[str]:
    """Write the grids of one worker."""
    for name, unit in GRIDS.items():
        grid: Grid = getattr(grids, name)
        axes = ", ".join(f'"{_text(axis)}"' for axis in grid.axes)
        rows = grid.values.reshape(-1, grid.values.shape[-1]) / unit
        yield from ("", f"[measured.attention.{name}]", f"axes = [{axes}]")
        yield from ('values = """', *map(_text, rows), '"""')


def numbers_of(text: str) -> Float64:
    """Parse numbers from 0 to MOST; a BadNumberError for anything else."""
    numbers = np.array(text.split(), np.float64)
    if not len(numbers) or not ((numbers >= 0) & (numbers <= MOST)).all():
        raise BadNumberError(f"{text[:40]!r}... must be numbers from 0 to {MOST:g}")
    return numbers


def _text(values: Float64) -> str:
    return " ".join(f"{number:g}" if number < 10000 else f"{number:.0f}" for number in _short(values))
