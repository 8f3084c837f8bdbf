"""A cost set of made-up measurements: it gives back what was measured, and says how steady that was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laminabench.calibrate.cost_set import ENGINE, Made, cost_set
from laminabench.calibrate.rounds import Point, Repeats
from laminabench.calibrate.terms import CHUNKS, LONG_SHARES, REQUESTS, SKEWED_REQUESTS, Model
from laminabench.catalog.cost_file import assumed_host, load_costs, write_costs
from laminabench.catalog.find_model import model
from laminabench.catalog.provenance import attention_sources, step_sources
from laminabench.catalog.step import model_step

SHAPE = model("llama-tiny")
ROWS = (1, 4, 16)
KV, BEFORE = (64, 1024), (0, 512)
STEADY = (0.99, 1.0, 1.01)
PER_ROW, PER_TOKEN = 1e-4, 1e-8


def repeats(noise: tuple[float, ...] = STEADY) -> Repeats:
    """A step is 10 products of 0.1 ms a row over all layers, 2 ms of small operators, 1 ms of choosing."""
    result = Repeats(columns={Model.name: list(ROWS)})
    matrices = [*(each.name for each in SHAPE.layer_gemms()), "lm_head"]

    def put(seconds: float, *point: Any, of: tuple[float, ...] = STEADY) -> None:
        result.seconds[point] = [seconds * times for times in of]

    for rows in ROWS:
        for name in matrices:
            put(rows * 10 * PER_ROW / len(matrices), f"gemm {name}", rows, of=noise)
        put(2e-3, "rest", rows)
        put(1e-3, "sampler", rows)
        put(2e-3 + rows * 10 * PER_ROW, "slices", rows)
        put(3e-3 + rows * 10 * PER_ROW, "step", rows)
    for k in KV:
        for n in REQUESTS:
            put(n * k * PER_TOKEN, "decode", n, k)
    for n in SKEWED_REQUESTS:
        for share in LONG_SHARES:
            # Half of the way from the mean to the longest.
            mean = 1024 * (share + (1 - share) / 8)
            put(n * (mean + 1024) / 2 * PER_TOKEN, "skew", n, round(share * n), 1024)
    for c in CHUNKS:
        for p in BEFORE:
            put(c * (p + c / 2) * PER_TOKEN, "prompt", c, p)
    return result


def made(result: Repeats | None = None, between: dict[Point, list[float]] | None = None) -> Made:
    named = ("my-core", "a core, today", "a core", ENGINE, 8e9, 1e10)
    return Made(SHAPE, *named, result or repeats(), between or {}, assumed_host())


def test_a_step_is_as_long_as_it_was() -> None:
    costs = cost_set(made())
    on = costs.devices["my-core"]
    step = model_step(costs, SHAPE, on, 1, ROWS)
    assert step.gemm_s + step.elementwise_s + step.lm_head_s == pytest.approx(
        [2e-3 + 1e-3 + rows * 10 * PER_ROW for rows in ROWS]
    )
    sources = step_sources(costs, SHAPE, on, 1) + attention_sources(costs, SHAPE, on, 1)
    assert {row["priced_by"] for row in sources} == {"measurements"}
    # The best rate of a product is the device's peak: no formula is above it.
    layer = SHAPE.layer_gemms()
    assert (
        on.flops["bf16"] >= max(2 * each.n * each.k * SHAPE.layers / (2 * PER_ROW) for each in layer) * 0.99
    )


def test_attention_is_as_it_was_and_both_kinds_add_up() -> None:
    costs = cost_set(made())
    result = costs.measured_attention(SHAPE, costs.devices["my-core"])
    assert result is not None
    grids = result.grids
    assert grids.decode.values == pytest.approx(np.outer(REQUESTS, KV) * PER_TOKEN)
    assert grids.prompt.values[1, 1] == pytest.approx(CHUNKS[1] * (512 + CHUNKS[1] / 2) * PER_TOKEN)
    assert grids.mixed.values[1, 1, 2, 1] == pytest.approx(grids.prompt.values[1, 1] + 4 * 1024 * PER_TOKEN)
    assert grids.skew.axes[0].tolist() == list(SKEWED_REQUESTS)
    assert grids.skew.values.ravel() == pytest.approx(0.5)
    assert grids.mixed_skew.values[..., 0] == pytest.approx(grids.skew.values)


def test_between_workers_are_lines_over_batches() -> None:
    each = 2 * 2 * (SHAPE.query_size + SHAPE.kv_size)
    between: dict[Point, list[float]] = {}
    for batch in (1, 4, 16):
        between["trip", batch] = [40e-6 + batch * each / 1e9] * 3
        between["boundary", batch] = [300e-6 + 5e-6 * batch] * 3
    costs = cost_set(made(between=between))
    network = costs.networks["shm"]
    assert (network.rtt_s, network.bandwidth_bytes_per_s) == (pytest.approx(40e-6), pytest.approx(1e9))
    assert (costs.host.per_step_s, costs.host.per_request_s) == (pytest.approx(300e-6), pytest.approx(5e-6))
    assert costs.host.origin.kind == "measured"
    # q, k and v leave before a slice ends, and attention may have begun by then.
    early = cost_set(made(between={("trip", 1): [1e-5, 1e-5], ("trip", 16): [-1e-5, -1e-5]})).networks["shm"]
    assert 0 <= early.rtt_s <= 1e-5
    assert early.bandwidth_bytes_per_s == 1e10  # of memory
    alone = cost_set(made())
    assert (alone.networks, alone.host) == ({}, assumed_host())


def test_overhead_of_workers_is_added() -> None:
    alone = cost_set(made())
    between: dict[Point, list[float]] = {("boundary", 1): [1e-4], ("boundary", 4): [1e-4]}
    for batch in (1, 4):
        # A moment's noise is not taken for it.
        step, attention = 3e-3 + batch * 10 * PER_ROW, batch * KV[0] * PER_TOKEN
        between["slices", batch] = [0.99 * step + 5e-4, 2 * step]
        between["attention", batch] = [0.99 * attention + 2e-5, 1.0]
    costs = cost_set(made(between=between))
    assert costs.host.gap_s == pytest.approx(5e-4)
    more, less = (
        each.measured_attention(SHAPE, each.devices["my-core"]).grids.decode.values  # type: ignore[union-attr]
        for each in (costs, alone)
    )
    assert more - less == pytest.approx(2e-5)


def test_what_was_unsteady_says_so(tmp_path: Path) -> None:
    def unstable(result: Repeats) -> set[str]:
        write_costs(cost_set(made(result)), tmp_path / "set.toml")
        costs = load_costs(str(tmp_path / "set.toml"))
        rows = step_sources(costs, SHAPE, costs.devices["my-core"], 1)
        return {row["term"].split()[0] for row in rows if row.get("unstable")}

    assert unstable(repeats()) == set()
    matrices = {"qkv", "o", "gate_up", "down", "lm_head"}
    assert unstable(repeats((0.8, 1.0, 1.3))) == matrices
    drifting = repeats()
    drifting.drifts[Model.name] = [0.2, 0.3, 0.0]
    assert unstable(drifting) == {*matrices, "norm", "activation", "rotary"}


def test_a_server_takes_requests_in_one_after_the_other(tmp_path: Path) -> None:
    """In 2 ms, 0.5 ms for each request, 0.3 ms until its step begins; out 4 ms."""
    served: dict[Point, list[float]] = {}
    for size in (1, 4, 16):
        taken_in = 2e-3 + 0.5e-3 * (size + 1) / 2
        served["taken in", size] = [taken_in] * 3
        served["begun", size] = [taken_in + 0.3e-3] * 3
        served["out", size] = [4e-3] * 3
        served["between steps", size] = [1e-4 + 2e-5 * size] * 3
    costs = cost_set(replace(made(), served=served))
    write_costs(costs, tmp_path / "set.toml")
    server = load_costs(str(tmp_path / "set.toml")).server
    assert server is not None
    assert (server.request_in_s, server.request_serial_s, server.out_s) == pytest.approx(
        (2.3e-3, 0.5e-3, 4e-3)
    )
    assert (server.per_step_s, server.per_request_s) == pytest.approx((1e-4, 2e-5))
    assert (server.origin.kind, server.origin.samples) == ("measured", 12)
    assert cost_set(made()).server is None
