"""What the remarks on v1's served figures (12, 13, 16) were tested with: one thing varied at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import numpy as np

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.costs import CostSet
from laminabench.catalog.hardware import device
from laminabench.papers.spans import span
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


def largest_batches(sets: list[CostSet], context: int, longest: int) -> str:
    """Of throughput with the largest batch over vLLM's: contexts, speed and memory devices."""
    shorter = span(gain("llama-13b", costs, SHORTEST) for costs in sets)
    slow = load_costs(DERIVED)
    implied = gain("llama-13b", slow, context)
    reading = gain("llama-13b", with_reading(slow), context)
    by_devices = ", ".join(
        f"{count}: {span((gain('llama-33b', costs, longest, count) for costs in sets), '.1f')}"
        for count in MEMORY_DEVICES
    )
    return (
        f"with requests of {SHORTEST} tokens, table 2's shortest, LLaMA-13B's is {shorter}. With the speed "
        f"that Table 3 implies and {context} tokens it is {implied:.2f}; {reading:.2f} if steps "
        "below batch 128 fell to what reading the weights takes by the data sheet. LLaMA-33B's with "
        f"{longest} tokens by memory devices: {by_devices}."
    )


def memory_devices(contexts: tuple[int, ...], published: float) -> str:
    """Of the largest batch over vLLM's: how many memory devices of LLaMA-33B the upper end asks for."""
    costs = load_costs("roofline")  # costs have no part in it
    ratios = {
        count: max(_batch_ratio("llama-33b", costs, context, count) for context in contexts)
        for count in range(4, 17)
    }
    best = min(ratios, key=lambda count: abs(ratios[count] - published))
    return (
        f"of 4 to 16 memory devices for LLaMA-33B, which come to {span(ratios.values(), '.0f')}, {best} are "
        f"nearest to the upper end with {ratios[best]:.0f}."
    )


def large_batches(sets: list[CostSet], contexts: tuple[int, ...], batches: tuple[int, ...]) -> str:
    """Of what rotation adds to batches of these sizes and the largest: the halves' speed, and contexts."""

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
    falling = [each for name in DOPS for context in contexts for each in gains(reading, name, context)]
    most = [gains(costs, name, SHORTEST)[-1] for costs in (*sets, load_costs(DERIVED)) for name in DOPS]
    return (
        "with the speed that Table 3 implies, if steps below batch 128 fell to what reading the weights "
        f"takes by the data sheet, {span(falling)}; with requests of {SHORTEST} tokens, of which most fit, "
        f"and any of these speeds {span(most)} with the largest batches."
    )


def small_batches(sets: list[CostSet], contexts: tuple[int, ...], batch: int) -> str:
    """Of rotation's latency: what is not doubled, taken away."""
    bare = [msgspec.structs.replace(each, host=load_costs("roofline").host) for each in sets]
    without, slow = (
        span(
            _latency_ratio(costs, name, context, batch)
            for costs in found
            for name in DOPS
            for context in contexts
            if batch <= most_requests(VLLM, setup(VLLM, name, costs), context)
        )
        for found in (bare, [load_costs(DERIVED)])
    )
    return f"without host {without}; with the speed that Table 3 implies, whose steps are longer, {slow}."


def prices(ratios: Iterable[tuple[str, float]], sets: list[CostSet]) -> str:
    """Of throughput per cost, by model and ratio: a cheaper computation device, and shorter requests."""
    half = span(ratio * _usd_ratio(name, 0.5) / _usd_ratio(name) for name, ratio in ratios)
    short = [gain("llama-13b", costs, SHORTEST, ways=(LAMINA, ROTATIONAL)) for costs in sets]
    full, cheap = (span(each * _usd_ratio("llama-13b", share) for each in short) for share in (1, 0.5))
    return (
        f"with computation devices at half the price of one of 80 GB it is {half}; with "
        f"requests of {SHORTEST} tokens, table 2's shortest, the lower end is {full}, or {cheap} with both."
    )


def overlap(sets: list[CostSet], contexts: tuple[int, ...], chunks: tuple[int, ...]) -> str:
    """Of overlapping: other contexts and numbers of mini-batches, with the largest batch that fits."""
    found = []
    for context in contexts:
        for count in chunks:
            shares = [_overlapped(setup(LAMINA, "llama-13b", costs), context, count) for costs in sets]
            masked, saved = (span((share[i] for share in shares), ".1f") for i in (0, 1))
            found.append(f"{context} tokens and {count} mini-batches {masked} % and {saved} %")
    return f"hidden and saved with {'; '.join(found)}."


def with_reading(costs: CostSet) -> CostSet:
    """Table 3's speed, but for one row what reading the weights takes by the data sheet."""
    bandwidth = device(CARD).bandwidth_bytes_per_s
    gemm = {
        (on, dtype, n, k): msgspec.structs.replace(
            curve,
            rows=np.append(1.0, curve.rows),
            seconds=np.append(2 * n * k / bandwidth, curve.seconds),
        )
        for (on, dtype, n, k), curve in costs.measured.gemm.items()
    }
    measured = msgspec.structs.replace(costs.measured, gemm=gemm)
    return msgspec.structs.replace(costs, name=f"{costs.name}, reading", measured=measured)


def gain(
    name: str, costs: CostSet, context: int, memory: int | None = None, ways: tuple[str, ...] = (LAMINA,)
) -> float:
    """Throughput with the largest batch over vLLM's, of the best of the ways."""

    def largest(way: str) -> float:
        chosen = setup(way, name, costs, memory)
        return point(way, chosen, context, most_requests(way, chosen, context)).tokens_per_s

    return max(map(largest, ways)) / largest(VLLM)


def _batch_ratio(name: str, costs: CostSet, context: int, memory: int) -> float:
    ours, theirs = (most_requests(way, setup(way, name, costs, memory), context) for way in (LAMINA, VLLM))
    return ours / theirs


def _usd_ratio(name: str, share: float = 1) -> float:
    """vLLM's cost over Lamina's, with computation devices at this share of their price."""
    theirs, ours = (usd(deployment(way, name), share) for way in (VLLM, LAMINA))
    return theirs / ours


def _latency_ratio(costs: CostSet, name: str, context: int, batch: int) -> float:
    rotating, alone = (point(way, setup(way, name, costs), context, batch) for way in (ROTATIONAL, LAMINA))
    return rotating.tbt_ms / alone.tbt_ms


def _overlapped(chosen: Setup, context: int, chunks: int) -> tuple[float, float]:
    """Percent of the network's time hidden, and of latency saved."""
    batch = most_requests(LAMINA, chosen, context)
    before, after = (
        point(LAMINA, replace(chosen, stream_chunks=count), context, batch) for count in (1, chunks)
    )
    saved = before.tbt_ms - after.tbt_ms
    return 100 * saved / before.network_ms, 100 * saved / before.tbt_ms
