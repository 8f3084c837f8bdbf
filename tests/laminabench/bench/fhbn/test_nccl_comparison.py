"""A GPU's channels beside NCCL: what is judged, and what is said where NCCL is not to be had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from laminabench.bench.fhbn import cuda, nccl, nccl_comparison, pingpong
from laminabench.bench.fhbn.nccl_comparison import SIZES, Nccl
from laminabench.bench.frame import spread


def rows(one_way_s: float) -> list[Any]:
    took = {"channel": spread([one_way_s])}
    return [cuda.row("shm", size, took, {}) for size in (0, *SIZES)]


@pytest.mark.parametrize(("theirs", "met"), [(20e-6, True), (19e-6, False)])
def test_a_round_trip_is_to_be_half_of_nccls(theirs: float, met: bool) -> None:
    result = Nccl({size: spread([theirs]) for size in SIZES})
    report = cuda.report("two GPUs", rows(5e-6), {}, result, gpus=2).json()
    assert [row["bytes"] for row in report["beside_nccl"]] == [64, 16 << 20]  # type: ignore[attr-defined]
    for row in report["beside_nccl"]:  # type: ignore[attr-defined]
        assert row["round_trip_s"]["median"] == pytest.approx(10e-6)
        assert row["ratio"] == pytest.approx(theirs / 10e-6)
        assert row["met"] is met
    assert report["met"] is met
    assert "two GPUs" in str(report["path"])


def test_one_gpu_is_not_judged_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "missing", lambda here, there: "NCCL wants a GPU for each")
    result = nccl_comparison.trips()
    assert result == Nccl(missing="NCCL wants a GPU for each")
    report = cuda.report("one GPU", rows(5e-6), {}, result).json()
    assert (report["met"], report["nccl_missing"]) == (None, "NCCL wants a GPU for each")
    assert [row["ratio"] for row in report["beside_nccl"]] == [None, None]  # type: ignore[attr-defined]


def test_rounds_are_nccls_own(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []

    def run(engines: Any, sizes: Any, seconds: float) -> Any:
        requests.append((engines.names, sizes, seconds))
        return SimpleNamespace(
            rounds=[{"bytes": size, "rtt_us_p50": us} for size in SIZES for us in (30.0, 10.0, 20.0)]
        )

    monkeypatch.setattr(nccl, "missing", lambda here, there: None)
    monkeypatch.setattr(pingpong, "run", run)
    result = nccl_comparison.trips()
    assert requests == [(("nccl",), SIZES, nccl_comparison.SECONDS)]
    took = result.trips_s[64]
    assert (took.min, took.median, took.max) == pytest.approx((10e-6, 20e-6, 30e-6))


def test_where_nccl_fails_the_rest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("NCCL error\nunhandled")

    monkeypatch.setattr(nccl, "missing", lambda here, there: None)
    monkeypatch.setattr(pingpong, "run", fails)
    assert nccl_comparison.trips() == Nccl(missing="RuntimeError: NCCL error")
