"""What must hold between replays, and in each, whatever the numbers: of every modelled system, drawn."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import laminabench as lb
from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.deployment import Deployment, parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import Device
from laminabench.catalog.network import parse_network
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.registry import system
from laminabench.traces.table import Trace, TraceMeta, make_trace

# Deployments with attention workers, or devices, to double.
SYSTEMS = {
    "lamina": ("llama3-70b", "2xh100+4xh20", "2xh100+8xh20"),
    "lamina-v1": ("llama-13b", "1xa100-80g+3xrtx-3090", "1xa100-80g+6xrtx-3090"),
    "vllm": ("llama3-70b", "4xh100", "8xh100"),
    "afd": ("llama3-70b", "2xh100+4xh20", "4xh100+4xh20"),
    "h2m2": ("llama3-70b", "1xh2m2", ""),
}
NETWORK = "40us,5GB/s"
# Batches that alternate share workers: as in any schedule, when one part is faster others may meet later.
ROUNDING, ANOMALY = 1e-9, 1e-3
SEEDS = range(int(os.environ.get("LAMINABENCH_SIM_EXAMPLES", "20")) // 5)
every_system = pytest.mark.parametrize("name", SYSTEMS)
seeds = pytest.mark.parametrize("seed", SEEDS)
pytestmark = pytest.mark.long(but=["0-*"])


def a_trace(seed: int, requests: int = 60) -> Trace:
    random = np.random.default_rng(seed)
    lengths = [random.integers(1, most, requests).astype(np.int32) for most in (1500, 60)]
    return make_trace(np.sort(random.exponential(2.0, requests).cumsum()), *lengths, TraceMeta("drawn"))


def build(
    name: str, seed: int, deployment: Deployment | None = None, network: str = NETWORK, **more: Any
) -> Any:
    random = np.random.default_rng(seed)
    shape, usual, _ = SYSTEMS[name]
    drawn: dict[str, Any] = {
        "host_async": bool(random.integers(2)),
        "max_num_seqs": int(random.integers(4, 64)),
    }
    if name.startswith("lamina"):
        drawn |= {"batches": int(random.integers(1, 3)), "overlap": bool(random.integers(2))}
    setup = Setup(
        model(shape), deployment or parse_deployment(usual), load_costs("roofline"), parse_network(network)
    )
    return system(name).build(replace(setup, **(drawn | more)))


def most_more(name: str, seed: int) -> float:
    """By how much a replay on faster parts may take longer."""
    return ANOMALY if build(name, seed).spec.batches > 1 else ROUNDING


def replayed(*of: Any, trace: Trace, **more: Any) -> Outcome:
    return simulate(trace, build(*of, **more).spec, Offered())


def doubled(deployment: Deployment, rate: str) -> Deployment:
    """The same devices with twice this rate."""

    def faster(device: Device) -> Device:
        return replace(device, **{rate: 2 * getattr(device, rate)})

    parts = {"model": deployment.model, "attention": deployment.attention}
    return replace(
        deployment,
        **{key: replace(part, device=faster(part.device)) for key, part in parts.items() if part is not None},
    )


@every_system
@seeds
def test_tokens_are_conserved_at_every_cut(name: str, seed: int) -> None:
    trace = a_trace(seed)
    outcome = replayed(name, seed, trace=trace, admission="reserve")
    requests, rows = outcome.requests, outcome.iterations
    first, last = requests["first_iteration"], requests["last_iteration"]
    assert np.array_equal(last - first + 1, trace.output_tokens)
    for batch in np.unique(rows["batch"]):
        own = requests["batch"] == batch
        sizes = rows["size"][rows["batch"] == batch]
        numbers = np.arange(len(sizes))[:, None]
        assert np.array_equal(rows["iteration"][rows["batch"] == batch], numbers[:, 0])
        made = np.clip(numbers - first[own] + 1, 0, trace.output_tokens[own]).sum(axis=1)
        assert np.array_equal(np.cumsum(sizes), made)
    assert rows["size"].sum() == trace.output_tokens.sum()


@pytest.mark.parametrize("rate", ["bandwidth_bytes_per_s", "interchip_bytes_per_s", "nic_bytes_per_s"])
@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "h2m2"])
@seeds
def test_twice_a_device_s_bandwidth_is_never_slower(name: str, rate: str, seed: int) -> None:
    trace, deployment = a_trace(seed), parse_deployment(SYSTEMS[name][1])
    plain = replayed(name, seed, deployment, trace=trace)
    faster = replayed(name, seed, doubled(deployment, rate), trace=trace)
    assert faster.end_s <= plain.end_s * (1 + most_more(name, seed))


@pytest.mark.parametrize("name", ["lamina", "lamina-v1", "afd"])
@seeds
def test_twice_the_network_is_never_slower(name: str, seed: int) -> None:
    trace = a_trace(seed)
    plain = replayed(name, seed, trace=trace)
    for network in ("40us,10GB/s", "20us,5GB/s"):
        assert replayed(name, seed, trace=trace, network=network).end_s <= plain.end_s * (
            1 + most_more(name, seed)
        )


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "h2m2"])
@seeds
def test_twice_the_devices_are_never_slower(name: str, seed: int) -> None:
    """Where what joins them takes no time: more of them have more to exchange."""
    trace, free = a_trace(seed), "0us,1000GB/s"
    ends = [
        replayed(name, seed, parse_deployment(text), trace=trace, network=free).end_s
        for text in SYSTEMS[name][1:]
    ]
    assert ends[1] <= ends[0] * (1 + most_more(name, seed))


@every_system
@seeds
def test_prices_scale_costs_and_nothing_else(name: str, seed: int) -> None:
    trace, factor = a_trace(seed), 2.0 ** (seed % 5 + 1)
    plain = lb.replay(trace, system=name, price=dict.fromkeys(devices(name), 1.5))
    dearer = lb.replay(trace, system=name, price=dict.fromkeys(devices(name), 1.5 * factor))
    assert dearer.cost.usd_per_hour == plain.cost.usd_per_hour * factor
    assert dearer.cost.usd_per_million_tokens == pytest.approx(
        plain.cost.usd_per_million_tokens * factor, rel=1e-12
    )
    assert dearer.tbt == plain.tbt
    assert dearer.requests.equals(plain.requests)


def devices(name: str) -> list[str]:
    return [part.device.name for part in lb_deployment(name).parts]


def lb_deployment(name: str) -> Deployment:
    return parse_deployment(system(name).default_deployment(model(SYSTEMS[name][0])))


@every_system
@seeds
def test_the_instances_are_the_whole(name: str, seed: int) -> None:
    """Of as many instances each one replays what it was given as if it were alone."""
    trace = a_trace(seed)
    one = lb.replay(trace, system=name, mode="saturate")
    several = lb.replay(trace, system=name, mode="saturate", instances=3)
    assert several.iterations["size"].sum() == one.iterations["size"].sum() == trace.output_tokens.sum()
    assert several.cost.usd_per_hour == pytest.approx(3 * one.cost.usd_per_hour, rel=1e-12)
    ends = []
    for place in range(3):
        share = lb.replay(trace.take(np.arange(place, len(trace), 3)), system=name, mode="saturate")
        ends.append(float(share.requests["finished_s"].max()))
        finished = several.requests["finished_s"].to_numpy()[place::3]
        assert np.array_equal(finished, share.requests["finished_s"].to_numpy())
    assert several.requests["finished_s"].max() == max(ends)


@pytest.mark.parametrize("name", ["vllm", "h2m2", "lamina", "afd"])
@seeds
def test_the_order_of_independent_requests_changes_nothing(name: str, seed: int) -> None:
    """All fit into the one batch: whose turn comes first does not count."""
    trace = a_trace(seed)
    order = np.random.default_rng(seed).permutation(len(trace))
    one = {} if name in ("vllm", "h2m2") else {"batches": 1}
    more = {"max_num_seqs": len(trace), **one}
    plain = replayed(name, seed, trace=trace, **more)
    other = replayed(name, seed, trace=trace.take(order), **more)
    assert np.array_equal(other.iterations["size"], plain.iterations["size"])
    if name in ("h2m2", "afd"):  # where a request's KV is depends on earlier requests
        assert other.end_s == pytest.approx(plain.end_s, rel=0.01)
        return
    assert np.array_equal(other.requests["finished_s"], plain.requests["finished_s"][order])
    for column in ("start_s", "duration_s", "kv_tokens"):
        assert np.array_equal(other.iterations[column], plain.iterations[column])
