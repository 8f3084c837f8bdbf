"""The points of a sweep as one table: what was varied, what a replay says, and why where it failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laminabench.util.atomic import replacing

if TYPE_CHECKING:
    import pyarrow as pa

TABLE = "sweep.parquet"
# Of a replay, not of its results: the same sweep gives the same table. `facts` differ between systems.
# A point that ended early is an error.
_LEFT_OUT = {"facts", "run_dir", "simulation_s", "wall_s", "partial"}
# Their keys come from outside and are no columns.
_TALLIES = {"by_error", "by_status"}


def row(varied: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, object]:
    """Return a point's row: varied flags once, as given, and no lists."""
    reported = {name: value for name, value in result.items() if name not in _LEFT_OUT and name != "error"}
    return {
        **varied,
        **{name: value for name, value in _flat(reported) if name not in varied},
        "error": result.get("error"),
    }


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the name of a nested value, such as `tbt_ms.p99`."""
    for name, value in facts.items():
        if name in _TALLIES:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list | tuple):
            yield f"{prefix}{name}", value


def write(rows: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Write all rows into one parquet file."""
    from laminabench.util import parquet

    whole = table(rows)
    with replacing(target) as temporary, parquet.writing(temporary, whole.schema) as writer:
        writer.write_table(whole)


def table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return a table with a column for every key of any row, `error` last; missing values are null."""
    import pyarrow as pa

    names = [name for name in dict.fromkeys(name for each in rows for name in each) if name != "error"]
    columns = {name: _column([each.get(name) for each in rows]) for name in names}
    return pa.table({**columns, "error": pa.array([each["error"] for each in rows], pa.string())})


def _column(values: list[Any]) -> pa.Array:
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if not kinds:  # such as the cost of devices without a price
        return pa.array(values, pa.float64())
    if kinds == {int, float}:
        return pa.array(values, pa.float64())
    if len(kinds) > 1:  # `batches=1,auto`
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return pa.array(values)
