"""A sweep's folder for readers: varied flags, the table of its points, a command for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from laminabench.requests.replay import BY_KEY
from laminabench.runs.documents import Kind, read
from laminabench.runs.summary import Facts
from laminabench.util.json import JsonObject
from laminabench.util.redact import command_line
from laminabench.workflows.sweep.rows import TABLE
from laminabench.workflows.sweep.store import FORMAT, FORMAT_VERSION, MANIFEST, POINTS

if TYPE_CHECKING:
    import pyarrow as pa

SWEEP = Kind("sweep", "laminabench sweep", MANIFEST, FORMAT, FORMAT_VERSION)
# Of a deployment, which has no flag of its own for them; a sweep varies them nevertheless.
COUNTS = ("model-workers", "attention-workers")


class StoredIdentity(Facts, frozen=True, kw_only=True):
    vary: list[str]
    flags: list[str]


class StoredManifest(Facts, frozen=True, kw_only=True):
    """The part of sweep.json that readers need."""

    identity: StoredIdentity
    command: str = ""
    points: int
    finished: int | None = None
    costs: JsonObject = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class StoredSweep:
    """A sweep, or as much of it as there is: the table is written when all points are there."""

    directory: Path
    manifest: StoredManifest
    table: pa.Table | None
    done: int  # points that are finished

    @property
    def varied(self) -> list[str]:
        """The flags that were, in the order of the grid. Their columns come first."""
        return [] if self.table is None else self.table.column_names[: len(self.manifest.identity.vary)]

    @property
    def metrics(self) -> list[str]:
        """The columns of numbers that were not varied."""
        import pyarrow.types as kinds

        if self.table is None:
            return []
        numeric = (
            field.name
            for field in self.table.schema
            if kinds.is_integer(field.type) or kinds.is_floating(field.type)
        )
        return [name for name in numeric if name not in self.varied]

    def column(self, name: str) -> list[Any]:
        """Return its values, a row a point."""
        assert self.table is not None
        values: list[Any] = self.table[name].to_pylist()
        return values

    def command(self, row: int) -> str:
        """Return the command that replays one point alone."""
        point = {name: self.column(name)[row] for name in (*self.varied, "deployment")}
        return command_line(
            ["laminabench", "replay", *_flags(self.manifest.identity.flags, point, self.varied)]
        )


def _flags(given: Sequence[str], point: Mapping[str, Any], varied: Sequence[str]) -> Iterator[str]:
    """Yield the sweep's flags, then this point's; counts of workers are in its deployment."""
    counted = any(name in COUNTS for name in varied)
    words = iter(given)
    for word in words:
        if counted and word == "--deployment":
            next(words, None)
        elif not (counted and word.startswith("--deployment=")):
            yield word
    for name in varied:
        if name not in COUNTS:
            value = point[name]
            yield from BY_KEY[name].arguments(value) if name in BY_KEY else (f"--{name}", str(value))
    if counted and point["deployment"] is not None:
        yield from ("--deployment", str(point["deployment"]))


def read_sweep(directory: Path) -> StoredSweep:
    """Read a sweep that this version understands, complete or in progress."""
    manifest = read(directory, SWEEP, StoredManifest)
    if manifest.finished is None:
        return StoredSweep(directory, manifest, None, sum(1 for _ in (directory / POINTS).glob("*.json")))
    return StoredSweep(directory, manifest, _table(directory / TABLE, manifest), manifest.finished)


def _table(path: Path, manifest: StoredManifest) -> pa.Table:
    try:
        modified_ns = path.stat().st_mtime_ns
    except OSError as error:
        raise SWEEP.damaged(path, f"it cannot be read ({error.strerror})") from error
    table = _parquet(path, modified_ns)
    missing = [name for name in ("backend", "error") if name not in table.column_names]
    if missing or table.num_rows != manifest.points:
        why = f"it has no column {missing[0]}" if missing else f"it has {table.num_rows:,} points"
        raise SWEEP.damaged(path, f"{why}, and {MANIFEST} speaks of {manifest.points:,} points")
    return table


@cache
def _parquet(path: Path, modified_ns: int) -> pa.Table:  # noqa: ARG001 - a file that has changed is another
    import pyarrow as pa

    from laminabench.util import parquet

    try:
        return parquet.table_of(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise SWEEP.damaged(path, "it is not parquet, or not all of it can be read") from error
