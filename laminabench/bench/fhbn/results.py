"""Results of a ping-pong: a row for each engine and size, one for each of its rounds, and its directory.

This module imports nothing of the engine, so that figures are drawn without it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.bench.frame import Row, Table, Text, ratios
from laminabench.runs.format import MANIFEST, manifest_in, sha256_of
from laminabench.runs.manifest import host
from laminabench.runs.replace import replacing_directory, require_replaceable
from laminabench.util.errors import UserError
from laminabench.util.json import json_safe, to_json
from laminabench.util.version import __version__, git_commit

TARGET_RTT_US = 2.0
TARGET_SHARE = 0.9
SMALLEST, LARGEST_JUDGED = 64, 16 << 20
# Below this size, a share of a copy only compares two calls from Python.
SHARE_FROM = 16 << 10
# Shown with an engine's numbers.
CAVEATS = {
    "verbs": "verified on soft-RoCE, not on a NIC",
    "mlx5": "not verified on hardware",
    "softnic": "a test bench, not RDMA performance",
    "nccl": "not verified on hardware",
}
FORMAT, FORMAT_VERSION = "laminabench-pingpong", 1
KIND = "fhbn-pingpong"
TABLE = "pingpong"

Seconds = NDArray[np.float64]
COPIES = ("memcpy", "channel_copy")
WAYS = ("one_way", "read", *COPIES)
Copies = Mapping[str, Sequence[Seconds]]  # for each of COPIES, one entry a round
Round = Mapping[str, object]  # a row of the table that --out writes


@dataclass
class Samples:
    """Times of one engine and size, one entry a round; in `read` the receiver also reads the message."""

    rtt: list[Seconds] = field(default_factory=list)
    one_way: list[Seconds] = field(default_factory=list)
    read: list[Seconds] = field(default_factory=list)


def median(rounds: Sequence[Seconds]) -> float:
    """Return the median of all samples in all rounds."""
    return float(np.median(np.concatenate(rounds)))


def row(engine: str, size: int, samples: Samples, copies: Copies) -> Row:
    """Return the row of one engine and size, with its target if any; NCCL, on GPUs, has no shares of a copy.

    The target is for `share_of_memcpy`; `share_of_limit` is relative to the faster of the two copies.
    """
    rtt, one_way_s = np.concatenate(samples.rtt), median(samples.one_way)
    p10, p50, p99 = (float(value) * 1e6 for value in np.percentile(rtt, (10, 50, 99)))
    copy_s = {name: median(rounds) for name, rounds in copies.items()}
    share = copy_s["memcpy"] / one_way_s
    shares = {
        "share_of_memcpy": share,
        "share_of_limit": min(copy_s.values()) / one_way_s,
        "share_of_memcpy_by_round": ratios(
            *([float(np.median(one)) for one in rounds] for rounds in (copies["memcpy"], samples.one_way))
        ),
    }
    target, met = None, None
    if engine == "shm" and size == SMALLEST:
        target, met = {"rtt_us_p50": TARGET_RTT_US}, p50 <= TARGET_RTT_US
    if engine == "shm" and size == LARGEST_JUDGED:
        target, met = {"share_of_memcpy": TARGET_SHARE}, share >= TARGET_SHARE
    facts = {
        "engine": engine,
        "bytes": size,
        "verified": engine not in CAVEATS,
        "caveat": CAVEATS.get(engine),
        "rtt_us_p10": p10,
        "rtt_us_p50": p50,
        "rtt_us_p99": p99,
        "rtt_us_min": float(rtt.min()) * 1e6,
        "one_way_us_p50": one_way_s * 1e6,
        "gb_per_s": size / one_way_s / 1e9,
        "read_gb_per_s": size / median(samples.read) / 1e9,
        **(dict.fromkeys(shares) if engine == "nccl" else shares),
        "round_trips": len(rtt),
        "rounds": len(samples.rtt),
        "target": target,
    }
    return Row(facts, cells(facts), met)


def rounds_of(engine: str, size: int, samples: Samples, copies: Copies) -> Iterator[Round]:
    ways = {"one_way": samples.one_way, "read": samples.read, **copies}
    for number, rtt in enumerate(samples.rtt):
        times = {"rtt_us_min": rtt.min(), "rtt_us_p50": np.median(rtt), "rtt_us_p99": np.percentile(rtt, 99)}
        times |= {f"{name}_us_p50": np.median(rounds[number]) for name, rounds in ways.items()}
        counts = {"engine": engine, "bytes": size, "round": number, "round_trips": len(rtt)}
        yield counts | {name: float(seconds) * 1e6 for name, seconds in times.items()}


def size_text(size: int) -> str:
    """Return a size in its usual unit: 64 B, 4 KiB, 16 MiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size * 10 % factor == 0:
            return f"{size / factor:g} {unit}"
    return f"{size:,} B"


def us_text(microseconds: float) -> str:
    return f"{microseconds:,.2f} us" if microseconds < 100 else f"{microseconds:,.0f} us"


def text(rows: Sequence[Row], skipped: Mapping[str, str], limits: Mapping[str, Any]) -> list[Text]:
    titles = (
        *("<engine", "size", "round trip,\np50", "p99", "GB/s\none way", "GB/s\nread"),
        *("of\nmemcpy", "of the\nfastest copy", "target", ""),
    )
    facts: list[Mapping[str, Any]] = [row.facts for row in rows]
    largest = max(each["bytes"] for each in facts)
    memcpy, copy = (_three_digits(limits[f"{name}_gb_per_s"][str(largest)]) for name in COPIES)
    line = limits["cache_line_round_trip_us"]
    between = [] if line is None else [f"a cache line there and back between the two cores: {line:.2f} us"]
    return [
        Table(titles, [(*row.cells, row.met if row.facts["target"] else "") for row in rows]),
        *notes([each["engine"] for each in facts], skipped),
        f"a copy of {size_text(largest)}: memcpy {memcpy} GB/s, as a channel copies {copy} GB/s",
        *between,
    ]


def notes(engines: Iterable[str], skipped: Mapping[str, str]) -> list[str]:
    """Return the notes below a table of engines."""
    starred = [f"* {engine}: {CAVEATS[engine]}" for engine in dict.fromkeys(engines) if engine in CAVEATS]
    return starred + [f"{engine} skipped: {reason}" for engine, reason in skipped.items()]


def starred(engine: str) -> str:
    """Return the engine's name, starred if there is a note on it."""
    return engine + ("*" if engine in CAVEATS else "")


def cells(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the table's cells, without the verdict; shares of small messages are left out."""
    large, target = facts["bytes"] >= SHARE_FROM, ""
    match facts["target"]:
        case {"rtt_us_p50": us}:
            target = f"p50 {us:g} us"
        case {"share_of_memcpy": share}:
            target = f"{share:.0%} of memcpy"
    return (
        starred(facts["engine"]),
        size_text(facts["bytes"]),
        us_text(facts["rtt_us_p50"]),
        us_text(facts["rtt_us_p99"]),
        _three_digits(facts["gb_per_s"]),
        _three_digits(facts["read_gb_per_s"]) if large else "-",
        *(_share(facts[name] if large else None) for name in ("share_of_memcpy", "share_of_limit")),
        target,
    )


def _three_digits(number: float) -> str:
    return f"{number:#.3g}" if number < 99.95 else f"{number:,.0f}"


def _share(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{share:.0%}" if share >= 0.01 else "< 1%"


def write(
    directory: Path, result: Mapping[str, object], rounds: Sequence[Round], command: Sequence[str]
) -> None:
    """Write run.json and pingpong.parquet, replacing a ping-pong; refuse to overwrite other files."""
    import pyarrow as pa

    from laminabench.util import parquet

    check_replaceable(directory)
    columns = {"engine": pa.string(), "bytes": pa.int64(), "round": pa.int32(), "round_trips": pa.int64()}
    times = ("rtt_us_min", "rtt_us_p50", "rtt_us_p99", *(f"{way}_us_p50" for way in WAYS))
    with replacing_directory(directory) as temporary:
        path = temporary / f"{TABLE}.parquet"
        schema = pa.schema(columns | dict.fromkeys(times, pa.float64()))
        table = pa.Table.from_pylist(list(rounds), schema)
        with parquet.writing(path, schema) as writer:
            writer.write_table(table)
        manifest = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kind": KIND,
            "laminabench": {"version": __version__, "commit": git_commit()},
            "command": shlex.join(command),
            "backend": "live",
            "host": to_json(host()),
            **result,
            "tables": {TABLE: {"rows": len(rounds), "sha256": sha256_of(path)}},
        }
        written = json.dumps(json_safe(manifest), indent=2, ensure_ascii=False, allow_nan=False)
        (temporary / MANIFEST).write_text(written + "\n", encoding="utf-8")


def check_replaceable(directory: Path) -> None:
    """Raise a UserError unless the path is free, an empty directory, or a ping-pong."""
    require_replaceable(directory, lambda: manifest_in(directory, FORMAT) is not None, "a ping-pong")


def read(directory: Path) -> dict[str, Any]:
    """Return the manifest of a ping-pong's directory, after checking its table; else a UserError."""
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
        complete = sha256_of(table) == manifest["tables"][TABLE]["sha256"] and bool(manifest["rows"])
    except (OSError, KeyError, TypeError):
        complete = False
    if not complete:
        raise UserError(
            "fhbn-run-damaged", f"{table} is missing, or differs from {MANIFEST}: measure it again"
        )
    return manifest
