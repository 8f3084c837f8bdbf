"""The contents of a modelled system's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from laminabench.catalog.accuracy import Known, known_accuracy
from laminabench.catalog.costs import ANY
from laminabench.systems.includes import Includes, together
from laminabench.systems.modelled.setup import Setup


def includes_of(setups: Iterable[tuple[str, Setup]]) -> Includes:
    """Return what the numbers of these systems include."""
    return together(_of(system, setup) for system, setup in setups)


def accuracy_of(system: str, setup: Setup) -> Known:
    """Return what is known of the accuracy of the system's numbers on its devices; boards have no kernels."""
    devices = [part.device.name for part in setup.deployment.parts if not part.device.board]
    return known_accuracy(setup.costs.name, system, devices, setup.model.name)


def _of(system: str, setup: Setup) -> Includes:
    known = accuracy_of(system, setup)
    return Includes(
        (_prompts(setup),),
        tuple(_kernels(setup)),
        tuple(dict.fromkeys(_assumed(system, setup))),
        known.sentences,
        known.unmeasured,
    )


def _prompts(setup: Setup) -> str:
    if not setup.prompt_budget:
        return "prompts computed elsewhere (--prefill off)"
    pool = setup.deployment.prefill
    return f"prompts computed by a pool of {pool}" if pool else "prompts computed by the decoding devices"


def _kernels(setup: Setup) -> Iterator[str]:
    board = setup.deployment.model.device.board
    yield f"parameters of board {board}" if board else f"kernels of {setup.costs.name}"
    for part in setup.deployment.parts:
        cost = setup.costs.attention.get(part.device.name)
        if cost and cost.kernel and not setup.model.latent:
            yield f"decode attention of {cost.kernel} on {part.device.name} ({cost.origin.kind})"


def _assumed(system: str, setup: Setup) -> Iterator[str]:
    deployment, costs = setup.deployment, setup.costs
    for part in deployment.parts:
        if part.device.price and part.device.price.basis == "assumed":
            yield f"price of {part.device.name}"
        if part.device.board:
            continue
        name = part.device.name
        lends = costs.measured_as(part.device)
        scaled = any(key.device == name and cost.origin.kind == "scaled" for key, cost in costs.gemm.items())
        if part is not deployment.attention and (scaled or lends not in (name, ANY)):
            yield f"matrix products on {name} scaled from {'another device' if scaled else lends}"
        attention: Mapping[Any, Any] = costs.latent if setup.model.latent else costs.attention
        lends = costs.source_of(attention, part.device) if attention else name
        if lends not in (name, ANY):
            yield f"attention on {name} scaled from {lends}"
    host = costs.host
    if host.origin.kind == "assumed" and (host.per_step_s or host.per_request_s):
        each = f" and {1e6 * host.per_request_s:g} us a request" if host.per_request_s else ""
        behind = ", hidden behind the devices" if setup.host_async else ""
        yield f"host of {system} {1000 * host.per_step_s:g} ms a step{each}{behind}"
