"""A measured ping-pong as a directory: run.json with what was found, pingpong.parquet with its rounds."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from laminabench.bench.fhbn import Measured
from laminabench.errors import UserError
from laminabench.json_safe import json_safe, to_json
from laminabench.runs.format import MANIFEST, manifest_in, sha256_of
from laminabench.runs.manifest import host
from laminabench.runs.replace import replacing_directory, require_replaceable
from laminabench.version import __version__, git_commit

FORMAT, FORMAT_VERSION = "laminabench-pingpong", 1
KIND = "fhbn-pingpong"
TABLE = "pingpong"
SCHEMA = pa.schema(
    [
        ("engine", pa.string()),
        ("bytes", pa.int64()),
        ("round", pa.int32()),
        ("round_trips", pa.int64()),
        ("rtt_us_min", pa.float64()),
        ("rtt_us_p50", pa.float64()),
        ("rtt_us_p99", pa.float64()),
        ("one_way_us_p50", pa.float64()),
        ("read_us_p50", pa.float64()),
        ("memcpy_us_p50", pa.float64()),
        ("channel_copy_us_p50", pa.float64()),
    ]
)


def write(directory: Path, measured: Measured, command: Sequence[str]) -> None:
    """Write it, replacing one that is there. Anything else that is there is kept, with a UserError."""
    check_replaceable(directory)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": KIND,
        "laminabench": {"version": __version__, "commit": git_commit()},
        "command": shlex.join(command),
        "backend": "live",
        "host": to_json(host()),
        **measured.result,
    }
    with replacing_directory(directory) as temporary:
        path = temporary / f"{TABLE}.parquet"
        pyarrow.parquet.write_table(pa.Table.from_pylist(measured.rounds, SCHEMA), path, compression="zstd")
        manifest["tables"] = {TABLE: {"rows": len(measured.rounds), "sha256": sha256_of(path)}}
        text = json.dumps(json_safe(manifest), indent=2, ensure_ascii=False, allow_nan=False)
        (temporary / MANIFEST).write_text(text + "\n", encoding="utf-8")


def check_replaceable(directory: Path) -> None:
    """A UserError unless nothing is there, or an empty directory, or a ping-pong."""
    require_replaceable(directory, lambda: manifest_in(directory, FORMAT) is not None, "a ping-pong")


def read(directory: Path) -> dict[str, Any]:
    """run.json of such a directory, whose table is as it was written; else a UserError."""
    manifest = manifest_in(directory, FORMAT)
    if manifest is None:
        raise UserError("fhbn-run-unknown", f"{directory} is not what 'laminabench bench fhbn --out' writes")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise UserError(
            "fhbn-run-format",
            f"{directory} was written in another format than this laminabench reads: measure it again",
        )
    table = directory / f"{TABLE}.parquet"
    try:
        whole = sha256_of(table) == manifest["tables"][TABLE]["sha256"] and bool(manifest["rows"])
    except (OSError, KeyError, TypeError):
        whole = False
    if not whole:
        raise UserError(
            "fhbn-run-damaged", f"{table} is missing, or not what {MANIFEST} tells of: measure it again"
        )
    return manifest
