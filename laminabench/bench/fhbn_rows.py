"""What a ping-pong's samples come to: a row for each engine and size, and one for each of its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

TARGET_RTT_US = 2.0
TARGET_SHARE = 0.9
SMALLEST, LARGEST_JUDGED = 64, 16 << 20
# Below, a share of a copy compares one call from Python with another.
SHARE_FROM = 16 << 10
# What has to be said beside an engine's numbers.
TEST_BENCH = "a test bench, not RDMA performance"
CAVEATS = {
    "verbs": "verified on soft-RoCE, not on a NIC",
    "mlx5": "not verified on hardware",
    "softnic": TEST_BENCH,
    "nccl": "not verified on hardware",
}

Seconds = NDArray[np.float64]
# "memcpy" and "channel_copy": one entry a round.
Copies = Mapping[str, Sequence[Seconds]]


@dataclass
class Samples:
    """One engine and size, one entry a round; `read` is `one_way` to a receiver that also reads it."""

    rtt: list[Seconds] = field(default_factory=list)
    one_way: list[Seconds] = field(default_factory=list)
    read: list[Seconds] = field(default_factory=list)


def median(rounds: Sequence[Seconds]) -> float:
    """Of all samples in all rounds."""
    return float(np.median(np.concatenate(rounds)))


def row(engine: str, size: int, samples: Samples, copies: Copies) -> dict[str, Any]:
    """What is told of one engine and size."""
    rtt, one_way_s = np.concatenate(samples.rtt), median(samples.one_way)
    shares = _shares(samples, copies)
    if engine == "nccl":  # whose bytes are in the memory of GPUs
        shares = dict.fromkeys(shares)
    found: dict[str, Any] = {
        "engine": engine,
        "bytes": size,
        "verified": engine not in CAVEATS,
        "caveat": CAVEATS.get(engine),
        **{f"rtt_us_p{share}": float(np.percentile(rtt, share)) * 1e6 for share in (10, 50, 99)},
        "rtt_us_min": float(rtt.min()) * 1e6,
        "one_way_us_p50": one_way_s * 1e6,
        "gb_per_s": size / one_way_s / 1e9,
        "read_gb_per_s": size / median(samples.read) / 1e9,
        **shares,
        "round_trips": len(rtt),
        "rounds": len(samples.rtt),
        "target": None,
        "met": None,
    }
    if engine == "shm" and size == SMALLEST:
        found["target"] = {"rtt_us_p50": TARGET_RTT_US}
        found["met"] = found["rtt_us_p50"] <= TARGET_RTT_US
    if engine == "shm" and size == LARGEST_JUDGED:
        found["target"] = {"share_of_memcpy": TARGET_SHARE}
        found["met"] = found["share_of_memcpy"] >= TARGET_SHARE
    return found


def _shares(samples: Samples, copies: Copies) -> dict[str, Any]:
    """Of what a copy moves in the same time: memcpy, which is the target, and the faster of the two."""
    one_way_s = median(samples.one_way)
    by_round = [
        float(np.median(limit) / np.median(ours))
        for limit, ours in zip(copies["memcpy"], samples.one_way, strict=True)
    ]
    return {
        "share_of_memcpy": median(copies["memcpy"]) / one_way_s,
        "share_of_limit": min(median(rounds) for rounds in copies.values()) / one_way_s,
        "share_of_memcpy_by_round": {
            "median": float(np.median(by_round)), "min": min(by_round), "max": max(by_round),
        },
    }  # fmt: skip


def rows_of_rounds(engine: str, size: int, samples: Samples, copies: Copies) -> list[dict[str, Any]]:
    """Of the table that --out writes."""
    return [
        {
            "engine": engine,
            "bytes": size,
            "round": number,
            "round_trips": len(rtt),
            "rtt_us_min": float(rtt.min()) * 1e6,
            "rtt_us_p50": float(np.median(rtt)) * 1e6,
            "rtt_us_p99": float(np.percentile(rtt, 99)) * 1e6,
            "one_way_us_p50": float(np.median(samples.one_way[number])) * 1e6,
            "read_us_p50": float(np.median(samples.read[number])) * 1e6,
            **{f"{name}_us_p50": float(np.median(rounds[number])) * 1e6 for name, rounds in copies.items()},
        }
        for number, rtt in enumerate(samples.rtt)
    ]
