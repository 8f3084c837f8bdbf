"""Figure 13 shows what was measured, and the published values as another system's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laminabench.bench.fhbn.results import write
from laminabench.papers.fig13 import draw, picture, read
from laminabench.util.errors import UserError

pytest.importorskip("msgpack")


def result(engines: tuple[str, ...] = ("shm", "gloo"), line_us: float | None = 0.4) -> dict[str, Any]:
    sizes = [64 * 4**step for step in range(10)]
    rows = [
        {
            "engine": engine, "bytes": size, "rtt_us_p10": 0.9 * index, "rtt_us_p50": 1.0 * index,
            "rtt_us_p99": 2.0 * index,
            "share_of_limit": None if engine == "nccl" else 1 / index,
        }
        for index, engine in enumerate(engines, 1)
        for size in sizes
    ]  # fmt: skip
    limits = {"cache_line_round_trip_us": line_us}
    return {"engines": list(engines), "sizes": sizes, "rows": rows, "limits": limits}


def test_lines_are_what_was_measured() -> None:
    trips, shares = picture(result()).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in trips.get_lines()}
    assert lines["shm"] == [1.0] * 10
    assert lines["gloo"] == [2.0] * 10
    assert lines["a cache line there and back"] == [0.4, 0.4]
    alone, _ = picture(result(line_us=None)).axes
    assert "a cache line there and back" not in [line.get_label() for line in alone.get_lines()]
    # From 16 KiB: below, two calls from Python are compared.
    gloo = next(line for line in shares.get_lines() if line.get_label() == "gloo")
    assert list(gloo.get_xdata()) == [16384 * 4**step for step in range(6)]
    assert list(gloo.get_ydata()) == [0.5] * 6
    assert (trips.get_xscale(), trips.get_yscale(), shares.get_yscale()) == ("log", "log", "linear")


def test_a_test_bench_is_not_taken_for_rdma() -> None:
    trips, _ = picture(result(("shm", "verbs", "mlx5", "softnic"))).axes
    labels = [str(line.get_label()) for line in trips.get_lines()]
    assert labels[:4] == [
        "shm",
        "verbs (verified on soft-RoCE, not on a NIC)",
        "mlx5 (not verified on hardware)",
        "softnic (a test bench, not RDMA performance)",
    ]


def test_it_is_drawn_from_a_directory_too(tmp_path: Path) -> None:
    write(tmp_path / "run", result(), [], ["laminabench"])
    draw(read(tmp_path / "run"), tmp_path / "fig.pdf")
    assert (tmp_path / "fig.pdf").stat().st_size > 5000


def test_another_kind_of_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="picture-suffix"):
        draw(result(), tmp_path / "fig.bmp")
