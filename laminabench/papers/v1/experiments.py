"""Experiments that test the remarks on v1's served figures (12, 13, 16), varying one thing at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import numpy as np

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.costs import CostSet
from laminabench.catalog.hardware import device
from laminabench.papers.v1.testbed import (
    CARD,
    DERIVED,
    DOPS,
    LAMINA,
    ROTATIONAL,
    VLLM,
    deployment,
    most_requests,
    point,
    setup,
    usd,
)
from laminabench.systems.modelled.setup import Setup

# The least context of table 2; which ones figure 12 shows is not in the paper's text.
SHORTEST = 128
# LLaMA-33B's numbers of devices are not there either.
MEMORY_DEVICES = (4, 8, 12)


def largest_batches(sets: list[CostSet], context: int, longest: int) -> dict[str, object]:
    """Vary contexts, speed and memory devices behind throughput with the largest batch over vLLM's."""
    slow = load_costs(DERIVED)
    return {
        "shorter": [gain("llama-13b", costs, SHORTEST) for costs in sets],
        "implied_gain": gain("llama-13b", slow, context),
        "reading": gain("llama-13b", with_reading(slow), context),
        "by_devices": {
            count: [gain("llama-33b", costs, longest, count) for costs in sets] for count in MEMORY_DEVICES
        },
    }


def memory_devices(contexts: tuple[int, ...], published: float) -> dict[str, object]:
    """Find how many memory devices of LLaMA-33B the upper end of the largest batch over vLLM's needs."""
    costs = load_costs("roofline")  # costs have no part in it
    ratios = {
        count: max(_batch_ratio("llama-33b", costs, context, count) for context in contexts)
        for count in range(4, 17)
    }
    best = min(ratios, key=lambda count: abs(ratios[count] - published))
    return {"of_devices": ratios.values(), "best_devices": best, "best_ratio": ratios[best]}


def large_batches(
    sets: list[CostSet], contexts: tuple[int, ...], batches: tuple[int, ...]
) -> dict[str, object]:
    """Vary the halves' speed and the contexts behind what rotation adds to these batches and the largest."""

    def gains(costs: CostSet, name: str, context: int) -> list[float]:
        lamina, rotating = (setup(way, name, costs) for way in (LAMINA, ROTATIONAL))
        most = min(most_requests(LAMINA, lamina, context), most_requests(ROTATIONAL, rotating, context))
        return [
            point(ROTATIONAL, rotating, context, batch).tokens_per_s
            / point(LAMINA, lamina, context, batch).tokens_per_s
            for batch in (*batches, most)
            if batches[0] <= batch <= most
        ]

    reading = with_reading(load_costs(DERIVED))
    return {
        "rotation_reading": [
            each for name in DOPS for context in contexts for each in gains(reading, name, context)
        ],
        "rotation_short": [
            gains(costs, name, SHORTEST)[-1] for costs in (*sets, load_costs(DERIVED)) for name in DOPS
        ],
    }


def small_batches(sets: list[CostSet], contexts: tuple[int, ...], batch: int) -> dict[str, object]:
    """Take away from rotation's latency what is not doubled: the host, or most of it with longer steps."""
    bare = [msgspec.structs.replace(each, host=load_costs("roofline").host) for each in sets]

    def latencies(some: Iterable[CostSet]) -> list[float]:
        return [
            _latency_ratio(costs, name, context, batch)
            for costs in some
            for name in DOPS
            for context in contexts
            if batch <= most_requests(VLLM, setup(VLLM, name, costs), context)
        ]

    return {"hostless": latencies(bare), "slower": latencies([load_costs(DERIVED)])}


def prices(ratios: Iterable[tuple[str, float]], sets: list[CostSet]) -> dict[str, object]:
    """Vary the computation device's price, and requests' length, behind throughput per cost."""
    short = [gain("llama-13b", costs, SHORTEST, ways=(LAMINA, ROTATIONAL)) for costs in sets]
    return {
        "half": [ratio * _usd_ratio(name, 0.5) / _usd_ratio(name) for name, ratio in ratios],
        "full_short": [each * _usd_ratio("llama-13b") for each in short],
        "half_short": [each * _usd_ratio("llama-13b", 0.5) for each in short],
    }


def overlap(
    sets: list[CostSet], contexts: tuple[int, ...], chunks: tuple[int, ...]
) -> dict[int, dict[int, list[list[float]]]]:
    """Vary contexts and mini-batches behind overlapping with the largest batch that fits.

    By context and mini-batches, the sets' percentages hidden of the network's time and saved of latency.
    """

    def shares(context: int, count: int) -> list[list[float]]:
        pairs = (overlapped(setup(LAMINA, "llama-13b", costs), context, None, count) for costs in sets)
        return [list(each) for each in zip(*(pair[-2:] for pair in pairs), strict=True)]

    return {context: {count: shares(context, count) for count in chunks} for context in contexts}


def with_reading(costs: CostSet) -> CostSet:
    """Return Table 3's speed, but for one row what reading the weights takes by the data sheet."""
    bandwidth = device(CARD).bandwidth_bytes_per_s
    gemm = {
        key: msgspec.structs.replace(
            curve,
            rows=np.append(1.0, curve.rows),
            seconds=np.append(2 * key.n * key.k / bandwidth, curve.seconds),
        )
        for key, curve in costs.measured.gemm.items()
    }
    measured = msgspec.structs.replace(costs.measured, gemm=gemm)
    return msgspec.structs.replace(costs, name=f"{costs.name}, reading", measured=measured)


def gain(
    name: str, costs: CostSet, context: int, memory: int | None = None, ways: tuple[str, ...] = (LAMINA,)
) -> float:
    """Return throughput with the largest batch over vLLM's, of the best of the ways."""

    def largest(way: str) -> float:
        chosen = setup(way, name, costs, memory)
        return point(way, chosen, context, most_requests(way, chosen, context)).tokens_per_s

    return max(map(largest, ways)) / largest(VLLM)


def _batch_ratio(name: str, costs: CostSet, context: int, memory: int) -> float:
    ours, theirs = (most_requests(way, setup(way, name, costs, memory), context) for way in (LAMINA, VLLM))
    return ours / theirs


def _usd_ratio(name: str, share: float = 1) -> float:
    """Return vLLM's cost over Lamina's, with computation devices at this share of their price."""
    theirs, ours = (usd(deployment(way, name), share) for way in (VLLM, LAMINA))
    return theirs / ours


def _latency_ratio(costs: CostSet, name: str, context: int, batch: int) -> float:
    rotating, alone = (point(way, setup(way, name, costs), context, batch) for way in (ROTATIONAL, LAMINA))
    return rotating.tbt_ms / alone.tbt_ms


def overlapped(
    chosen: Setup, context: int, batch: int | None, chunks: int
) -> tuple[int, float, float, float, float, float]:
    """Return a step sent whole and in mini-batches, of the largest batch that fits by default.

    The batch; milliseconds of both steps and of the network; percentages hidden of the network's time, and
    saved of latency.
    """
    size = most_requests(LAMINA, chosen, context) if batch is None else batch
    before, after = (
        point(LAMINA, replace(chosen, stream_chunks=count), context, size) for count in (1, chunks)
    )
    saved = before.tbt_ms - after.tbt_ms
    percents = 100 * saved / before.network_ms, 100 * saved / before.tbt_ms
    return size, before.tbt_ms, after.tbt_ms, before.network_ms, *percents
