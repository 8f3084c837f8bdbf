"""What a ping-pong came to: a row for each engine and size and one for each of its rounds, and its directory.

Loads nothing of the engine, so that figures are drawn without it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.bench.frame import Spread, Table, Text, spread
from laminabench.errors import UserError
from laminabench.json_safe import json_safe, to_json
from laminabench.runs.format import MANIFEST, manifest_in, sha256_of
from laminabench.runs.manifest import host
from laminabench.runs.replace import replacing_directory, require_replaceable
from laminabench.version import __version__, git_commit

TARGET_RTT_US = 2.0
TARGET_SHARE = 0.9
SMALLEST, LARGEST_JUDGED = 64, 16 << 20
# Below, a share of a copy compares one call from Python with another.
SHARE_FROM = 16 << 10
# Shown beside an engine's numbers.
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
# "memcpy" and "channel_copy": one entry a round.
Copies = Mapping[str, Sequence[Seconds]]


@dataclass
class Samples:
    """One engine and size, one entry a round; `read` is `one_way` to a receiver that also reads it."""

    rtt: list[Seconds] = field(default_factory=list)
    one_way: list[Seconds] = field(default_factory=list)
    read: list[Seconds] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """One engine and size. Shares are of what a copy moves in the same time; NCCL, on GPUs, has none.

    `share_of_memcpy` is what the target speaks of, `share_of_limit` is of the faster of the two copies.
    """

    engine: str
    bytes: int
    verified: bool
    caveat: str | None
    rtt_us_p10: float
    rtt_us_p50: float
    rtt_us_p99: float
    rtt_us_min: float
    one_way_us_p50: float
    gb_per_s: float
    read_gb_per_s: float
    share_of_memcpy: float | None
    share_of_limit: float | None
    share_of_memcpy_by_round: Spread | None
    round_trips: int
    rounds: int
    target: Mapping[str, float] | None
    met: bool | None


@dataclass(frozen=True)
class Round:
    """A row of the table that --out writes."""

    engine: str
    bytes: int
    round: int
    round_trips: int
    rtt_us_min: float
    rtt_us_p50: float
    rtt_us_p99: float
    one_way_us_p50: float
    read_us_p50: float
    memcpy_us_p50: float
    channel_copy_us_p50: float


@dataclass(frozen=True)
class Limits:
    """What no channel can beat: copies, by the size as text, and a cache line's way between the cores."""

    memcpy_gb_per_s: dict[str, float]
    channel_copy_gb_per_s: dict[str, float]
    cache_line_round_trip_us: float | None


def median(rounds: Sequence[Seconds]) -> float:
    """Of all samples in all rounds."""
    return float(np.median(np.concatenate(rounds)))


def row(engine: str, size: int, samples: Samples, copies: Copies) -> Row:
    """Of one engine and size, with its target if it has one."""
    rtt, one_way_s, memcpy_s = np.concatenate(samples.rtt), median(samples.one_way), median(copies["memcpy"])
    rtt_us_p10, rtt_us_p50, rtt_us_p99 = (float(value) * 1e6 for value in np.percentile(rtt, (10, 50, 99)))
    by_round = [
        float(np.median(limit) / np.median(ours))
        for limit, ours in zip(copies["memcpy"], samples.one_way, strict=True)
    ]
    on_gpus = engine == "nccl"
    target, met = None, None
    if engine == "shm" and size == SMALLEST:
        target, met = {"rtt_us_p50": TARGET_RTT_US}, rtt_us_p50 <= TARGET_RTT_US
    if engine == "shm" and size == LARGEST_JUDGED:
        target, met = {"share_of_memcpy": TARGET_SHARE}, memcpy_s / one_way_s >= TARGET_SHARE
    return Row(
        engine,
        size,
        verified=engine not in CAVEATS,
        caveat=CAVEATS.get(engine),
        rtt_us_p10=rtt_us_p10,
        rtt_us_p50=rtt_us_p50,
        rtt_us_p99=rtt_us_p99,
        rtt_us_min=float(rtt.min()) * 1e6,
        one_way_us_p50=one_way_s * 1e6,
        gb_per_s=size / one_way_s / 1e9,
        read_gb_per_s=size / median(samples.read) / 1e9,
        share_of_memcpy=None if on_gpus else memcpy_s / one_way_s,
        share_of_limit=None if on_gpus else min(median(rounds) for rounds in copies.values()) / one_way_s,
        share_of_memcpy_by_round=None if on_gpus else spread(by_round),
        round_trips=len(rtt),
        rounds=len(samples.rtt),
        target=target,
        met=met,
    )


def rounds_of(engine: str, size: int, samples: Samples, copies: Copies) -> Iterator[Round]:
    """Of one engine and size."""
    for number, rtt in enumerate(samples.rtt):
        medians = (samples.one_way, samples.read, copies["memcpy"], copies["channel_copy"])
        yield Round(
            *(engine, size, number, len(rtt), float(rtt.min()) * 1e6),
            *(float(value) * 1e6 for value in np.percentile(rtt, (50, 99))),
            *(float(np.median(rounds[number])) * 1e6 for rounds in medians),
        )


def size_text(size: int) -> str:
    """As people say it: 64 B, 4 KiB, 16 MiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size * 10 % factor == 0:
            return f"{size / factor:g} {unit}"
    return f"{size:,} B"


def us_text(microseconds: float) -> str:
    return f"{microseconds:,.2f} us" if microseconds < 100 else f"{microseconds:,.0f} us"


def text(rows: Sequence[Row], skipped: Mapping[str, str], limits: Limits) -> list[Text]:
    """The rows as a table, what was skipped, and the limits."""
    titles = (
        *("<engine", "size", "round trip,\np50", "p99", "GB/s\none way", "GB/s\nread"),
        *("of\nmemcpy", "of the\nfastest copy", "target", ""),
    )
    largest = max(row.bytes for row in rows)
    memcpy, copy = (
        _three_digits(by_size[str(largest)])
        for by_size in (limits.memcpy_gb_per_s, limits.channel_copy_gb_per_s)
    )
    line = limits.cache_line_round_trip_us
    between = [] if line is None else [f"a cache line there and back between the two cores: {line:.2f} us"]
    return [
        Table(titles, [_cells(row) for row in rows]),
        *notes({row.engine: row.caveat for row in rows}, skipped),
        f"a copy of {size_text(largest)}: memcpy {memcpy} GB/s, as a channel copies {copy} GB/s",
        *between,
    ]


def notes(caveats: Mapping[str, str | None], skipped: Mapping[str, str]) -> list[str]:
    """What stands below a table of engines."""
    starred = [f"* {engine}: {caveat}" for engine, caveat in caveats.items() if caveat]
    return starred + [f"{engine} skipped: {reason}" for engine, reason in skipped.items()]


def _cells(row: Row) -> tuple[str | bool | None, ...]:
    large = row.bytes >= SHARE_FROM
    target = ""
    if row.target is not None:
        by_time = row.target.get("rtt_us_p50")
        target = (
            f"{row.target['share_of_memcpy']:.0%} of memcpy" if by_time is None else f"p50 {by_time:g} us"
        )
    return (
        row.engine + ("*" if row.caveat else ""),
        size_text(row.bytes),
        us_text(row.rtt_us_p50),
        us_text(row.rtt_us_p99),
        _three_digits(row.gb_per_s),
        _three_digits(row.read_gb_per_s) if large else "-",
        _share(row.share_of_memcpy if large else None),
        _share(row.share_of_limit if large else None),
        target,
        row.met if row.target else "",
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
    """Write run.json and pingpong.parquet, replacing a ping-pong; anything else there is kept (UserError)."""
    import pyarrow as pa
    import pyarrow.parquet

    check_replaceable(directory)
    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
    columns = {name: types[str(kind)] for name, kind in Round.__annotations__.items()}
    with replacing_directory(directory) as temporary:
        path = temporary / f"{TABLE}.parquet"
        table = pa.Table.from_pylist(
            [asdict(one) for one in rounds], pa.schema(columns | {"round": pa.int32()})
        )
        pyarrow.parquet.write_table(table, path, compression="zstd")
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
