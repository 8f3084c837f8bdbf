"""Deployments of about the same price or power: the ones asked for where they are, else the best ones."""

from __future__ import annotations

from collections.abc import Iterable

from laminabench.candidates import deployments
from laminabench.catalog.deployment import Deployment
from laminabench.catalog.hardware import Device
from laminabench.compare.spec import ComparisonSpec, Equal, longest_held, without_longer
from laminabench.errors import UserError
from laminabench.replay import replay
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.registry import system
from laminabench.traces.table import Trace


def made_equal(
    setups: dict[str, Setup], spec: ComparisonSpec, asked: Equal, trace: Trace
) -> dict[str, Setup]:
    """The setups with every deployment within the tolerance of the first one's price, or power."""
    first, *others = setups
    reference = setups[first]
    amount = asked.of(first, reference.deployment)
    held = longest_held(first, reference)
    devices = asked.devices or _devices_of(setups)
    found = {first: reference}
    for name in others:
        if asked.allows(setups[name].deployment, amount):
            found[name] = setups[name]
            continue
        possible = list(deployments(name, reference.model, devices))
        near = _fitting(name, [each for each in possible if asked.allows(each, amount)], reference, spec)
        if not near:
            fitting = _fitting(name, possible, reference, spec)
            raise UserError(
                "compare-no-equal-deployment", _nothing_near(name, fitting, amount, asked, devices)
            )
        served = [_served(name, setup, held, spec, trace) for setup in near]
        found[name] = near[served.index(max(served))]
    return found


def _fitting(name: str, some: Iterable[Deployment], reference: Setup, spec: ComparisonSpec) -> list[Setup]:
    """Those deployments that have the memory."""
    found = []
    for deployment in some:
        setup = spec.setup(name, reference.model, reference.costs, deployment)
        try:
            longest_held(name, setup)
        except UserError:  # no memory for it, or no way to split the model so
            continue
        found.append(setup)
    return found


def _served(name: str, setup: Setup, held: int, spec: ComparisonSpec, trace: Trace) -> tuple[int, float]:
    """How well it serves what the reference can hold: how many of the requests, and how fast."""
    kept = without_longer(trace, min(held, longest_held(name, setup)))
    if not len(kept):
        return 0, 0.0
    rate = replay(kept, name, setup, spec.workload).summary.throughput_tokens_per_s
    return len(kept), rate or 0.0


def _devices_of(setups: dict[str, Setup]) -> tuple[Device, ...]:
    parts = [part for setup in setups.values() for part in setup.deployment.parts]
    return tuple({part.device.name: part.device for part in parts}.values())


def _nothing_near(
    name: str, fitting: list[Setup], amount: float, asked: Equal, devices: tuple[Device, ...]
) -> str:
    # If there is none of a kind that it runs on, that is what to read.
    right = [device for device in devices if system(name).runs_on(device)]
    kinds = ", ".join(device.name for device in right or devices)
    what = f"no deployment of {name} on {kinds} is within {asked.tolerance:.0%} of {asked.said(amount)}"
    known = {setup.deployment: own for setup in fitting if (own := asked.known(setup.deployment)) is not None}
    if not known:
        has = "price" if asked.amount == "cost" else "rated power"
        return f"{what}: none has the memory and a {has}; name other kinds with --devices"
    closest = min(known, key=lambda deployment: abs(known[deployment] - amount))
    return (
        f"{what}; the nearest is {closest} for {asked.said(known[closest]).removesuffix(' an hour')}: "
        "raise --tolerance, or name other kinds with --devices"
    )
