"""Write a cost set in the package's format: formulas and an index in TOML, measured times as arrays."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from laminabench.catalog.cost_file import formula_lines, to_value
from laminabench.catalog.cost_keys import HeadsKey
from laminabench.catalog.cost_terms import Origin, coefficients
from laminabench.catalog.costs import CostSet
from laminabench.catalog.measured import Measured
from laminabench.catalog.measured_tables import GRIDS, MAX_AXES, kinds
from laminabench.util.atomic import replacing

NAME = "U16"  # of a device, a format or an operator
ABOUT = [("table", "i2"), ("samples", "i4"), ("error", "f8")]


def write_packaged(costs: CostSet, folder: Path, comment: str = "") -> None:
    """Write NAME.toml and, of a set with measured times, NAME.npz."""
    arrays, tables = to_arrays(costs.measured)
    lines = formula_lines(costs, comment)
    if arrays:
        measured = costs.measured
        lines += ["", "[measured]", f"graph_rows = {measured.graph_rows}", f"nearest = {measured.nearest}"]
        lines += ["# The sources of the curves in the arrays, which have the index of a row.", "index = ["]
        lines += [*(f"  {to_value(table)}," for table in tables), "]"]
        with replacing(folder / f"{costs.name}.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
    with replacing(folder / f"{costs.name}.toml") as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def to_arrays(measured: Measured) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Return the arrays that `measured_tables.read_arrays` reads, and the tables that they are from."""
    arrays: dict[str, np.ndarray] = {}
    counts: Counter[tuple[str, ...]] = Counter()

    def about(name: str, origin: Origin) -> tuple[int, int, float]:
        error_of, error = next(iter(origin.errors.items()), ("", 0.0))
        table = (name, origin.kind, origin.source, origin.range, error_of)
        counts[table] += 1
        return list(counts).index(table), origin.samples, error

    for name, kind in kinds().items():
        if curves := sorted(getattr(measured, name).items()):
            columns = [[getattr(each, column) for _, each in curves] for column in coefficients(kind.arrays)]
            rows = [
                (*key, *about(name, each.origin), len(columns[0][i])) for i, (key, each) in enumerate(curves)
            ]
            arrays[f"{name}.curves"] = np.array(rows, [*_fields(kind.key), *ABOUT, ("points", "i4")])
            arrays[f"{name}.points"] = np.stack([np.concatenate(column) for column in columns])
    grids, points = [], []
    for key, each in sorted(measured.attention.items()):
        origin = about("attention", each.origin)
        for name in GRIDS:
            grid = getattr(each, name)
            shape = [len(axis) for axis in grid.axes]
            grids.append((*key, *origin, name, [*shape, *[0] * (MAX_AXES - len(shape))]))
            points += [*grid.axes, grid.values.ravel()]
    if grids:
        fields = [*_fields(HeadsKey), *ABOUT, ("grid", NAME), ("shape", "i4", MAX_AXES)]
        arrays["attention.grids"] = np.array(grids, fields)
        arrays["attention.points"] = np.concatenate(points)
    names = ("of", "kind", "source", "range", "error")
    tables = [{**dict(zip(names, table, strict=True)), "curves": count} for table, count in counts.items()]
    return arrays, tables


def _fields(key: type[Any]) -> list[tuple[str, str]]:
    types = key.__annotations__
    return [(name, "i4" if "int" in str(types[name]) else NAME) for name in key._fields]
