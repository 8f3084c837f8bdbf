"""Steps that were made up part by part: the parts are found again, and the cost set adds up to the steps."""

from __future__ import annotations

import pytest

from laminabench.calibrate.cost_set import Made, cost_set
from laminabench.calibrate.rounds import Repeats
from laminabench.calibrate.vllm import CHUNK, STEP, WORDS, parted, read_rate
from laminabench.catalog.cost_file import assumed_host
from laminabench.catalog.find_model import model
from laminabench.catalog.step import model_step

SHAPE = model("llama-tiny")
REQUESTS, KV = (1, 4, 16), (16, 256, 1024)
CHUNKS, BEFORE = (16, 64), (0, 512)
STEADY = (0.9, 1.0, 1.1)
# Seconds: of a step, of a row, of a request beyond the first, of a KV token, of a pair of a prompt's tokens.
FIXED, ROW, REQUEST, TOKEN, PAIR = 10e-3, 1e-3, 0.2e-3, 1e-6, 2e-7


def step(requests: int, kv: int) -> float:
    return FIXED + requests * ROW + (requests - 1) * REQUEST + requests * kv * TOKEN


def chunk(tokens: int, before: int) -> float:
    return FIXED + tokens * ROW + tokens * (before + (tokens + 1) / 2) * PAIR


def result() -> Repeats:
    made = Repeats(columns={STEP: list(KV), CHUNK: list(BEFORE)})
    for n in REQUESTS:
        for k in KV:
            made.seconds[STEP, n, k] = [share * step(n, k) for share in STEADY]
    for c in CHUNKS:
        for p in BEFORE:
            made.seconds[CHUNK, c, p] = [share * chunk(c, p) for share in STEADY]
    made.seconds[CHUNK, 512, 0] = [share * chunk(512, 0) for share in STEADY]
    made.drifts[STEP], made.drifts[CHUNK] = [0.2], [0.0]
    return made


def made(steps: Repeats) -> Made:
    named = ("my-cores", "cores, today", "cores", WORDS, 8e9, read_rate(steps, SHAPE))
    between = {("boundary", n): [1e-4 + 1e-6 * n] * 3 for n in REQUESTS}
    return Made(SHAPE, *named, parted(steps, SHAPE), between, assumed_host())


def test_parts_are_what_the_steps_were_made_of() -> None:
    parts = parted(result(), SHAPE)
    head = SHAPE.lm_head_gemm()
    share = (
        head.n
        * head.k
        / sum([head.n * head.k, *(each.n * each.k * SHAPE.layers for each in SHAPE.layer_gemms())])
    )
    last = share * (FIXED + ROW)
    assert parts.at("gemm lm_head", 1) == pytest.approx(last)
    assert parts.at("gemm lm_head", 16) == pytest.approx(last + 15 * REQUEST)
    moved = 4 * 2 * SHAPE.layers * SHAPE.elementwise(1)[1] / read_rate(result(), SHAPE)
    assert parts.at("rest", 4) == pytest.approx(moved)
    products = sum(parts.at(f"gemm {each.name}", 4) for each in SHAPE.layer_gemms())
    assert products == pytest.approx(parts.at("slices", 4) - moved)
    assert parts.at("slices", 4) == pytest.approx(FIXED + 4 * ROW - last)
    assert parts.at("slices", 64) == pytest.approx(FIXED + 64 * ROW - last)
    # Of a chunk that was measured with nothing before it, attention is as of the next smaller one.
    assert parts.at("slices", 512) == pytest.approx(FIXED + 512 * ROW - last)
    assert ("prompt", 512, 0) not in parts.seconds
    assert parts.at("decode", 4, 1024) == pytest.approx(4 * 1024 * TOKEN / SHAPE.layers)
    assert parts.at("prompt", 64, 512) == pytest.approx(64 * 544.5 * PAIR / SHAPE.layers)
    assert parts.seconds["decode", 1, 16] == pytest.approx(
        [times * 16 * TOKEN / SHAPE.layers for times in STEADY]
    )


def test_a_step_of_the_set_is_as_long_as_it_was() -> None:
    costs = cost_set(made(result()))
    on = costs.devices["my-cores"]
    without = model_step(costs, SHAPE, on, 1, REQUESTS)
    grids = costs.measured_attention(SHAPE, on)
    assert grids is not None
    for place, n in enumerate(REQUESTS):
        for other, k in enumerate(KV):
            attention = SHAPE.layers * grids.grids.decode.values[place, other]
            assert without.total_s[place] + attention == pytest.approx(step(n, k))
    # A chunk's rows, its attention, and the head for the one token that it makes.
    layers = model_step(costs, SHAPE, on, 1, 64)
    once = model_step(costs, SHAPE, on, 1, 1).lm_head_s
    rows = layers.gemm_s + layers.elementwise_s
    assert rows + once + SHAPE.layers * grids.grids.prompt.values[1, 1] == pytest.approx(chunk(64, 512))
    assert (costs.host.per_step_s, costs.host.per_request_s) == (pytest.approx(1e-4), pytest.approx(1e-6))
    assert costs.networks == {}


def test_noise_makes_nothing_negative() -> None:
    noisy = result()
    for n in REQUESTS:
        noisy.seconds[STEP, n, KV[1]] = [step(n, 0) * 0.9] * 3  # shorter than with less KV
    for c in CHUNKS:
        noisy.seconds[CHUNK, c, BEFORE[1]] = [chunk(c, 0) * 0.9] * 3
    parts = parted(noisy, SHAPE)
    assert all(seconds >= 0 for taken in parts.seconds.values() for seconds in taken)
    cost_set(made(noisy))
