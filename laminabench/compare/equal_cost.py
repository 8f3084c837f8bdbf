"""Deployments of about the same price: the ones asked for where they are, else the best that there are."""

from __future__ import annotations

from laminabench.candidates import deployments
from laminabench.catalog.hardware import Device
from laminabench.compare.holding import longest_held, without_longer
from laminabench.compare.terms import EqualCost, Terms, price_of
from laminabench.errors import UserError
from laminabench.replay import replay
from laminabench.systems.setup import Setup
from laminabench.traces.table import Trace


def at_equal_cost(setups: dict[str, Setup], terms: Terms, asked: EqualCost, trace: Trace) -> dict[str, Setup]:
    """The setups with every deployment within the tolerance of the first one's price."""
    first, *others = setups
    reference = setups[first]
    usd = price_of(first, reference)
    held = longest_held(first, reference)
    devices = asked.devices or _devices_of(setups)
    found = {first: reference}
    for name in others:
        if asked.allows(setups[name].deployment.usd_per_hour, usd):
            found[name] = setups[name]
            continue
        fitting = _fitting(name, reference, terms, devices)
        near = [setup for setup in fitting if asked.allows(setup.deployment.usd_per_hour, usd)]
        if not near:
            raise UserError(_nothing_near(name, fitting, usd, asked, devices))
        served = [_served(name, setup, held, terms, trace) for setup in near]
        found[name] = near[served.index(max(served))]
    return found


def _fitting(name: str, reference: Setup, terms: Terms, devices: tuple[Device, ...]) -> list[Setup]:
    """Every deployment of these devices that has a price and the memory."""
    model, costs = reference.model, reference.costs
    found = []
    for deployment in deployments(name, model, devices):
        setup = terms.setup(name, model, costs, deployment)
        try:
            longest_held(name, setup)
        except UserError:  # no memory for it, or no way to split the model so
            continue
        found.append(setup)
    return found


def _served(name: str, setup: Setup, held: int, terms: Terms, trace: Trace) -> tuple[int, float]:
    """How well it serves what the reference can hold: how many of the requests, and how fast."""
    kept = without_longer(trace, min(held, longest_held(name, setup)))
    if not len(kept):
        return 0, 0.0
    rate = replay(kept, name, setup, terms.workload).summary["throughput_tokens_per_s"]
    return len(kept), rate or 0.0


def _devices_of(setups: dict[str, Setup]) -> tuple[Device, ...]:
    parts = [part for setup in setups.values() for part in setup.deployment.parts]
    return tuple({part.device.name: part.device for part in parts}.values())


def _nothing_near(
    name: str, fitting: list[Setup], usd: float, asked: EqualCost, devices: tuple[Device, ...]
) -> str:
    kinds = ", ".join(device.name for device in devices)
    what = f"no deployment of {name} on {kinds} is within {asked.tolerance:.0%} of ${usd:.2f} an hour"
    if not fitting:
        return f"{what}: none has the memory and a price; name other kinds with --devices"
    prices = {setup.deployment: price_of(name, setup) for setup in fitting}
    closest = min(prices, key=lambda deployment: abs(prices[deployment] - usd))
    return (
        f"{what}; the nearest is {closest} for ${prices[closest]:.2f}: raise --tolerance, or name other "
        "kinds with --devices"
    )
