"""Read a Run: its manifest alone, or with all its tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from laminabench.runs.documents import Kind, facts_in
from laminabench.runs.format import FORMAT, FORMAT_VERSION, MANIFEST, sha256_of
from laminabench.runs.manifest import Manifest, Table, Totals
from laminabench.runs.schema import FLAG, SECONDS, STATUS, TABLES, TEXT, Column, schema
from laminabench.runs.status import STATUSES
from laminabench.runs.summary import ClientSummary, EngineSummary
from laminabench.sim.outcome import Columns, Outcome, no_timeline
from laminabench.sim.spec import TICKS_PER_S
from laminabench.util import parquet, safe_parse
from laminabench.util.errors import UserError

# The latest time that 64-bit ticks can count: 29 years.
LATEST_S = 2.0**63 / TICKS_PER_S * 0.99


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one replay; `outcome.requests` has a `status` column, its timeline is empty."""

    directory: Path
    manifest: Manifest
    outcome: Outcome
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]


def read_run(directory: Path) -> Run:
    """Return the Run in this directory; a UserError reports damage."""
    manifest = read_manifest(directory)
    totals = manifest.totals
    if totals is None or not totals.replica_busy_s:
        raise RUN.damaged(directory / MANIFEST, "its totals know no model workers")
    tables = {
        name: _read_table(directory / f"{name}.parquet", columns, manifest.tables[name])
        for name, columns in TABLES.items()
        if name in manifest.tables
    }
    if not {"requests", "iterations"} <= tables.keys():
        raise RUN.damaged(directory / MANIFEST, "it does not name the tables")
    for file, why in problems(tables, totals):
        raise RUN.damaged(directory / file, why)
    tables.setdefault(
        "stints", {column.name: np.zeros(0, column.type.to_pandas_dtype()) for column in TABLES["stints"]}
    )
    requests = tables["requests"]
    prompt, output = requests.pop("prompt_tokens"), requests.pop("output_tokens")
    outcome = Outcome(
        requests,
        tables["iterations"],
        tables["stints"],
        no_timeline(),
        # null is unknown, as the busy time of a server observed only from outside.
        replica_busy_s=np.asarray(totals.replica_busy_s, np.float64),
        attention_busy_s=math.nan if totals.attention_busy_s is None else totals.attention_busy_s,
        end_s=totals.end_s,
        queue_empty_s=totals.queue_empty_s,
        peak_kv_tokens=totals.peak_kv_tokens,
        kv_capacity_tokens=totals.kv_capacity_tokens,
        chunks=tables.get("chunks"),
        calls=tables.get("calls"),
        memory=tables.get("memory"),
        prompts=tables.get("prompts"),
        pool=tables.get("pool"),
        gaps=tables.get("gaps"),
        tally={**tables["tally"], **(totals.tally or {})} if "tally" in tables else None,
    )
    return Run(directory, manifest, outcome, prompt, output)


class _RunKind(Kind):
    """A Run, whose errors have codes of their own."""

    __slots__ = ()

    def damaged(self, path: Path, why: str) -> UserError:
        return UserError("run-damaged", f"{path} is damaged: {why}; replay it again")

    def another(self, directory: Path, why: str) -> UserError:
        why = why if directory.is_dir() else "it is not a directory"
        return UserError("run-not-a-run", f"{directory} is not a Run: {why}")

    def newer(self, directory: Path, version: int) -> UserError:
        return UserError(
            "run-format-newer",
            f"{directory} was written in format {version} and this laminabench reads up to {self.version}; "
            "upgrade laminabench",
        )


RUN = _RunKind("Run", "laminabench replay", MANIFEST, FORMAT, FORMAT_VERSION)


def read_manifest(directory: Path) -> Manifest:
    """Return the completely checked manifest of a Run that this version can read."""
    facts = facts_in(directory, RUN)
    try:
        # Two kinds of summary without a tag: only a client's has attempts.
        manifest, summary = msgspec.convert(facts, Manifest), facts["summary"]
        kind = ClientSummary if "attempts" in summary else EngineSummary
        return msgspec.structs.replace(manifest, summary=msgspec.convert(summary, kind))
    except msgspec.ValidationError as error:
        raise RUN.damaged(directory / MANIFEST, str(error)) from error


def problems(tables: Mapping[str, Columns], totals: Totals) -> Iterator[tuple[str, str]]:
    """Yield the file and the reason of everything invalid in a Run's tables."""
    for name, table in tables.items():
        for column in TABLES[name]:
            # Times must fit a 64-bit number of ticks.
            if column.type == SECONDS and (np.abs(table[column.name]) > LATEST_S).any():
                why = f"its column {column.name} has times of more than {LATEST_S:,.0f} s"
                yield f"{name}.parquet", why
    if max(abs(totals.end_s), abs(totals.queue_empty_s)) > LATEST_S:
        yield MANIFEST, f"its totals have times of more than {LATEST_S:,.0f} s"
    for name in {"memory", "prompts"} & tables.keys():
        if len(next(iter(tables[name].values()))) != len(tables["iterations"]["start_s"]):
            yield f"{name}.parquet", "it has not one row for each iteration"
    # Chunks and calls come together, and refer to existing requests.
    if ("chunks" in tables) != ("calls" in tables):
        yield MANIFEST, "of chunks and calls it names one without the other"
    elif "chunks" in tables:
        count = len(tables["requests"]["arrival_s"])
        if len(tables["calls"]["due_s"]) != count:
            yield "calls.parquet", "it has not one row for each request"
        chunks = tables["chunks"]
        request, at_s = chunks["request"], chunks["at_s"]
        if len(request) and (request.min() < 0 or request.max() >= count or chunks["tokens"].min() < 1):
            yield "chunks.parquet", "it has chunks of no request, or of no token"
        if not np.isfinite(at_s).all() or (np.diff(at_s) < 0).any():
            yield "chunks.parquet", "its chunks are not in the order in which they came"


def _read_table(path: Path, columns: tuple[Column, ...], table: Table) -> Columns:
    try:
        safe_parse.require_file(path)
        if sha256_of(path) != table.sha256:
            raise RUN.damaged(path, f"its content does not match the checksum in {MANIFEST}")
        with parquet.reading(path) as file:
            rows = file.metadata.num_rows
            if table.rows and rows != table.rows:
                raise RUN.damaged(path, f"it has {rows:,} rows and {MANIFEST} says {table.rows:,}")
            # Equal values compress to almost nothing: a small file can unpack to a huge table.
            if safe_parse.is_bomb(path.stat().st_size, 8 * rows * len(columns)):
                raise UserError(
                    "run-packed-too-well",
                    f"{path} has {path.stat().st_size:,} bytes and would unpack to {rows:,} rows, which no "
                    "replay does: it is not read",
                )
            types = {field.name: field.type for field in file.schema_arrow}
            for column in columns:
                if types.get(column.name) != schema((column,)).field(0).type:
                    raise RUN.damaged(path, f"its column {column.name} is missing or not {column.type}")
            # One column at a time: the table and its arrays would take twice the memory.
            return {
                column.name: _values(column, parquet.bounded(file, path, [column.name]).column(0))
                if column.type == TEXT
                else _values(column, file.read([column.name]).column(0))
                for column in columns
            }
    except FileNotFoundError as error:
        raise UserError(
            "run-incomplete", f"{path.parent} is not whole: {path.name} is missing; replay it again"
        ) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RUN.damaged(path, "it is not parquet, or not all of it can be read") from error


def _values(column: Column, chunked: pa.ChunkedArray) -> NDArray[Any]:
    if column.type == STATUS:
        codes = [_codes(chunk) for chunk in chunked.chunks]
        return np.concatenate(codes) if codes else np.zeros(0, np.int8)
    if column.type in (FLAG, TEXT) and chunked.null_count:
        raise ValueError(f"no {column.name} may be null")
    if chunked.null_count and not pa.types.is_floating(column.type):
        chunked = chunked.fill_null(-1)
    values: NDArray[Any] = chunked.to_numpy()
    return values


def _codes(statuses: pa.DictionaryArray) -> NDArray[np.int8]:
    """Decode a dictionary by its names: another writer may have put them in another order."""
    codes = np.array([STATUSES.index(name) for name in statuses.dictionary.to_pylist()], np.int8)
    result: NDArray[np.int8] = codes[statuses.indices.to_numpy(zero_copy_only=False)]
    return result
