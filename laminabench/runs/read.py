"""Reading a Run back: its manifest alone, or with all its tables."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from laminabench.errors import UserError
from laminabench.runs.format import FORMAT, FORMAT_VERSION, MANIFEST, sha256_of
from laminabench.runs.schema import FLAG, STATUS, TABLES, TEXT, Column, schema
from laminabench.runs.status import STATUSES
from laminabench.sim.outcome import Columns, Outcome

TIMELINE = ("batch", "worker", "iteration", "slice", "start_s", "end_s")


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one replay; `outcome.requests` has a `status` column, its timeline is empty."""

    directory: Path
    manifest: dict[str, Any]
    outcome: Outcome
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]


def read_run(directory: Path) -> Run:
    """The Run in this directory; a UserError says what is wrong with it."""
    manifest = read_manifest(directory)
    try:
        digests = {str(name): str(table["sha256"]) for name, table in manifest["tables"].items()}
        totals = dict(manifest["totals"])
        # Null is what nobody knows, as of a server that is only seen from outside.
        totals["replica_busy_s"] = np.asarray(totals["replica_busy_s"], np.float64)
        if totals.get("attention_busy_s", 0.0) is None:
            totals["attention_busy_s"] = math.nan
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(directory / MANIFEST, "it has no totals or no checksums") from error
    if not totals["replica_busy_s"].size:
        raise _damaged(directory / MANIFEST, "its totals know no model workers")
    tables = {
        name: _read_table(directory / f"{name}.parquet", columns, digests[name])
        for name, columns in TABLES.items()
        if name in digests
    }
    if not {"requests", "iterations"} <= tables.keys():
        raise _damaged(directory / MANIFEST, "it does not name the tables")
    _require_calls_of_requests(directory, tables)
    if "memory" in tables and len(tables["memory"]["moved_bytes"]) != len(tables["iterations"]["start_s"]):
        raise _damaged(directory / "memory.parquet", "it has not one row for each iteration")
    tables.setdefault(
        "stints", {column.name: np.zeros(0, column.type.to_pandas_dtype()) for column in TABLES["stints"]}
    )
    requests = tables["requests"]
    prompt, output = requests.pop("prompt_tokens"), requests.pop("output_tokens")
    timeline: Columns = {name: np.zeros(0) for name in TIMELINE}
    try:
        outcome = Outcome(
            requests,
            tables["iterations"],
            tables["stints"],
            timeline,
            **totals,
            chunks=tables.get("chunks"),
            calls=tables.get("calls"),
            memory=tables.get("memory"),
        )
    except TypeError as error:
        raise _damaged(directory / MANIFEST, "its totals are not those of a Run") from error
    return Run(directory, manifest, outcome, prompt, output)


def read_manifest(directory: Path) -> dict[str, Any]:
    """run.json of a Run that this version can read."""
    path = directory / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"has no {MANIFEST}" if directory.is_dir() else "is not a directory"
        raise UserError("run-not-a-run", f"{directory} is not a Run: it {what}") from error
    except OSError as error:
        raise UserError("file-not-readable", f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise _damaged(path, "it is not JSON") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UserError(
            "run-not-a-run", f'{directory} is not a Run: {MANIFEST} does not say "format": "{FORMAT}"'
        )
    version = found.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise _damaged(path, "its format_version is not a number")
    if version > FORMAT_VERSION:
        raise UserError(
            "run-format-newer",
            f"{directory} was written in format {version} and this laminabench reads up to {FORMAT_VERSION}; "
            "upgrade laminabench",
        )
    return found


def _require_calls_of_requests(directory: Path, tables: dict[str, Columns]) -> None:
    """Chunks and calls are there together, and of requests that there are."""
    if ("chunks" in tables) != ("calls" in tables):
        raise _damaged(directory / MANIFEST, "of chunks and calls it names one without the other")
    if "chunks" not in tables:
        return
    count = len(tables["requests"]["arrival_s"])
    if len(tables["calls"]["due_s"]) != count:
        raise _damaged(directory / "calls.parquet", "it has not one row for each request")
    chunks = tables["chunks"]
    request, at_s = chunks["request"], chunks["at_s"]
    if len(request) and (request.min() < 0 or request.max() >= count or chunks["tokens"].min() < 1):
        raise _damaged(directory / "chunks.parquet", "it has chunks of no request, or of no token")
    if not np.isfinite(at_s).all() or (np.diff(at_s) < 0).any():
        raise _damaged(directory / "chunks.parquet", "its chunks are not in the order in which they came")


def _read_table(path: Path, columns: tuple[Column, ...], digest: str) -> Columns:
    try:
        if sha256_of(path) != digest:
            raise _damaged(path, f"its content does not match the checksum in {MANIFEST}")
        with pa.parquet.ParquetFile(path) as file:
            found = {field.name: field.type for field in file.schema_arrow}
            for column in columns:
                if found.get(column.name) != schema((column,)).field(0).type:
                    raise _damaged(path, f"its column {column.name} is missing or not {column.type}")
            # One column at a time: a whole table beside its arrays would be in memory twice.
            return {column.name: _values(column, file.read([column.name]).column(0)) for column in columns}
    except FileNotFoundError as error:
        raise UserError(
            "run-incomplete", f"{path.parent} is not whole: {path.name} is missing; replay it again"
        ) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, "it is not parquet, or not all of it can be read") from error


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
    """By name: who wrote the file may have put them in another order."""
    codes = np.array([STATUSES.index(name) for name in statuses.dictionary.to_pylist()], np.int8)
    found: NDArray[np.int8] = codes[statuses.indices.to_numpy(zero_copy_only=False)]
    return found


def _damaged(path: Path, what: str) -> UserError:
    return UserError("run-damaged", f"{path} is damaged: {what}; replay it again")
