"""The inputs of a comparison of two systems: what each is, how far it may be off, and what it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from laminabench.catalog.cost_terms import HostCost, Origin
from laminabench.catalog.deployment import Deployment
from laminabench.catalog.faster import attention_faster, gemms_faster
from laminabench.catalog.hardware import Device
from laminabench.catalog.host import with_host
from laminabench.catalog.ranges import Range, RangeKind, Span, hosts_of_eras, limits_of_eras, load_ranges
from laminabench.systems.modelled.setup import ATTENTION_WORKING_BYTES, WORKING_BYTES, Setup
from laminabench.systems.registry import system
from laminabench.workflows.compare.spec import Deployed, limit_in, on_boards
from laminabench.workflows.sensitivity.speeds import attention_span, gemm_span

# A number in its input's unit, or one of several choices.
Value = float | str
Change = Callable[[Deployed, Any], Deployed]


@dataclass(frozen=True, slots=True)
class Input:
    """One input, and the only definition of what it changes."""

    name: str  # for --json
    title: str
    of: tuple[str, ...]  # the systems whose replay it changes; none, if it is a price
    here: Value  # in words where it is no number of the range's kind
    values: tuple[Value, ...]  # the low and the high end; of choices all others
    source: str
    kind: RangeKind
    change: Change
    unit: str = ""
    searched: tuple[float, float] | None = None  # for a break-even; None for choices, and prices
    whole: bool = False

    def text(self, value: Value) -> str:
        """Return the value with its unit, for people."""
        if isinstance(value, str):
            return value
        if self.unit == "%":
            return f"{value:.1%}"
        digits = f"{value:,.0f}" if self.whole or abs(value) >= 1000 else f"{value:.3g}"
        return f"${digits}{self.unit[1:]}" if self.unit.startswith("$") else f"{digits} {self.unit}"


def inputs_of(chosen: Mapping[str, Deployed]) -> list[Input]:
    """Return all inputs of these systems."""
    ranges = load_ranges()
    setups = [setup for on in chosen.values() for setup in on.kinds]
    devices = {part.device.name: part.device for setup in setups for part in setup.deployment.parts}
    inputs = [_price(device, ranges["price"]) for device in devices.values()]
    for name, on in chosen.items():
        inputs += _of_host(name, on.setup, ranges)
    linked = tuple(name for name, on in chosen.items() if on.setup.deployment.parts[1:])
    if linked:
        inputs += _of_network(linked, chosen[linked[0]].setup, ranges)
    on_devices = {name: on for name, on in chosen.items() if not on_boards(on.setup)}
    inputs += _of_speed(on_devices, ranges["speed"])
    for name, on in chosen.items():
        inputs.append(_sequences(name, on.setup, ranges["sequences"]))
    for name, on in on_devices.items():
        inputs += _of_memory(name, on.setup, ranges)
    return [*inputs, *_of_policy(chosen)]


def _ranged(
    name: str, title: str, of: tuple[str, ...], here: float, known: Range, span: Span, change: Change
) -> Input:
    """Return a numeric input, rounded to the twelfth digit after unit conversion."""
    here = float(f"{here:.12g}")
    around = span.around(here)
    return Input(
        name,
        title,
        of,
        here,
        (around.low, around.high),
        around.source,
        around.kind,
        change,
        known.unit,
        known.searched,
        known.integer,
    )


# Prices


def _price(device: Device, known: Range) -> Input:
    price = device.price
    assert price is not None  # else there would be nothing to compare
    name, change = device.name, partial(_repriced, device.name)
    span = known.of("any" if price.basis == "purchase" else name)  # the others are rents
    return _ranged(f"price_{name}", f"price of {name}", (), price.usd, known, span, change)


def _repriced(device: str, on: Deployed, usd: float) -> Deployed:
    def changed(one: Deployment) -> Deployment:
        parts = {
            name: replace(part, device=replace(part.device, override_usd_per_hour=usd))
            for name in ("model", "attention", "prefill")
            if (part := getattr(one, name)) and part.device.name == device
        }
        return replace(one, **parts)

    instances = tuple(map(changed, on.routed.instances))
    return Deployed(
        replace(on.setup, deployment=changed(on.setup.deployment)), replace(on.routed, instances=instances)
    )


# Hosts


def _of_host(name: str, setup: Setup, ranges: Mapping[str, Range]) -> Iterator[Input]:
    known, host = ranges["host"], setup.costs.host
    span = hosts_of_eras(name) or known.of(name)
    per_step = _ranged(
        f"host_{name}", f"host of {name}, a step", (name,), host.per_step_s * 1e3, known, span, _hosted
    )
    yield replace(per_step, here=_in_words(host)) if host.per_request_s or host.gap_s else per_step
    if not (host.per_step_s or host.per_request_s):
        return  # there is nothing to work at
    yield Input(
        f"host_async_{name}",
        f"host of {name} works",
        (name,),
        *_swapped("behind the devices", "between steps", first=setup.host_async),
        "vLLM's --async-scheduling of 2025 has it behind the devices; engines before had it between steps",
        "choice",
        _hosted_behind,
    )


def _in_words(host: HostCost) -> str:
    """Return the complete host cost in words, which a number of milliseconds a step is not."""
    parts = [f"{host.per_step_s * 1e3:.3g} ms"]
    if host.per_request_s:
        parts.append(f"{host.per_request_s * 1e6:.3g} us a request")
    if host.gap_s:
        parts.append(f"{host.gap_s * 1e6:.3g} us between steps")
    return " and ".join(parts)


def _swapped(yes: str, no: str, *, first: bool) -> tuple[str, tuple[str, ...]]:
    return (yes, (no,)) if first else (no, (yes,))


def _hosted(on: Deployed, ms: float) -> Deployed:
    """Set the host's whole time, as in an era: nothing is added for each request."""
    host = HostCost(ms / 1e3, 0.0, Origin("assumed", "a value of its range"))
    return _set(on, costs=with_host(on.setup.costs, host))


def _hosted_behind(on: Deployed, where: str) -> Deployed:
    return _set(on, host_async=where == "behind the devices")


def _set(on: Deployed, **changed: Any) -> Deployed:
    return replace(on, setup=replace(on.setup, **changed))


# The network


def _of_network(of: tuple[str, ...], setup: Setup, ranges: Mapping[str, Range]) -> Iterator[Input]:
    rtt, nic, network = ranges["rtt"], ranges["nic"], setup.network
    yield _ranged("rtt", "network round trip", of, network.rtt_s * 1e6, rtt, rtt.of("any"), _with_rtt)
    bandwidth = network.bandwidth_bytes_per_s / 1e9
    yield _ranged("nic", "network bandwidth", of, bandwidth, nic, nic.of("any"), _linked)


def _with_rtt(on: Deployed, us: float) -> Deployed:
    return _set(on, network=replace(on.setup.network, rtt_s=us / 1e6))


def _linked(on: Deployed, gb_per_s: float) -> Deployed:
    return _set(on, network=replace(on.setup.network, bandwidth_bytes_per_s=gb_per_s * 1e9))


# How fast devices are


def _of_speed(chosen: Mapping[str, Deployed], known: Range) -> Iterator[Input]:
    """Return every device's speed in its systems, as a share of the cost set's speed."""
    roles: dict[tuple[str, str], list[str]] = {}
    devices: dict[str, Device] = {}
    for name, on in chosen.items():
        deployment = on.setup.deployment
        for work, workers in (
            ("gemm", deployment.model),
            ("attention", deployment.attention or deployment.model),
        ):
            devices[workers.device.name] = workers.device
            roles.setdefault((work, workers.device.name), []).append(name)
    for (work, name), of in sorted(roles.items(), reverse=True):
        device, setup = devices[name], chosen[of[0]].setup
        span = (gemm_span if work == "gemm" else attention_span)(setup, device)
        what = "matrix products" if work == "gemm" else "decode attention"
        change = partial(_faster, work, device)
        title = f"{what} on {name}"
        yield _ranged(f"{work}_{name}", title, tuple(of), 1.0, known, span, change)


def _faster(work: str, device: Device, on: Deployed, times: float) -> Deployed:
    change = gemms_faster if work == "gemm" else attention_faster
    return _set(on, costs=change(on.setup.costs, device, times))


# How many at once, and in what memory


def _sequences(name: str, setup: Setup, known: Range) -> Input:
    span = limits_of_eras(name, partial(limit_in, setup=setup)) or known.of(name)
    title, here = f"limit of {name}", setup.max_num_seqs or system(name).most_requests(setup.deployment)
    return _ranged(f"max_num_seqs_{name}", title, (name,), here, known, span, _limited)


def _limited(on: Deployed, requests: float) -> Deployed:
    return _set(on, max_num_seqs=int(requests))


def _of_memory(name: str, setup: Setup, ranges: Mapping[str, Range]) -> Iterator[Input]:
    share, working = ranges["memory"], ranges["working"]
    title = f"memory in use, {name}"
    yield _ranged(
        f"memory_{name}", title, (name,), setup.gpu_memory_utilization, share, share.of(name), _using
    )
    title = f"memory beside KV, {name}"
    here = _working_bytes(setup) / 1e9
    yield _ranged(f"working_{name}", title, (name,), here, working, working.of(name), _working)


def _using(on: Deployed, share: float) -> Deployed:
    return _set(on, gpu_memory_utilization=share)


def _working(on: Deployed, gb: float) -> Deployed:
    """Return the deployment with so much less, or more, memory in use."""
    setup = on.setup
    device = (setup.deployment.attention or setup.deployment.model).device
    more = (gb * 1e9 - _working_bytes(setup)) / device.memory_bytes
    return _set(on, gpu_memory_utilization=setup.gpu_memory_utilization - more)


def _working_bytes(setup: Setup) -> float:
    return WORKING_BYTES if setup.deployment.attention is None else ATTENTION_WORKING_BYTES


# Policy


def _of_policy(chosen: Mapping[str, Deployed]) -> Iterator[Input]:
    setups = [on.setup for on in chosen.values()]
    yield Input(
        "admission",
        "KV is taken",
        tuple(chosen),
        *_swapped("at once", "as it grows", first=setups[0].admission == "reserve"),
        "both exist: vLLM's grows, with preemption; the papers do not say",
        "choice",
        _admitted,
    )
    for name, on in chosen.items():
        implementation, layout = system(name), on.setup.deployment.model.layout
        if "batches" in implementation.TAKES and (layout is None or layout.pp == 1):  # else as many as stages
            yield Input(
                f"batches_{name}",
                f"{name} rotates",
                (name,),
                "2 batches",
                ("1 batch", *(f"{n} batches" for n in range(3, implementation.MOST_BATCHES + 1))),
                "the papers have two batches, and describe one and more",
                "choice",
                _rotating,
            )


def _admitted(on: Deployed, how: str) -> Deployed:
    return _set(on, admission="reserve" if how == "at once" else "grow")


def _rotating(on: Deployed, batches: str) -> Deployed:
    return _set(on, batches=int(batches.split(maxsplit=1)[0]))
