"""Ranges of device speeds in cost sets: an input that has no other source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from laminabench.catalog.cost_file import COST_SETS, load_costs
from laminabench.catalog.cost_terms import Float64
from laminabench.catalog.costs import ANY, MEASURED, CostSet
from laminabench.catalog.hardware import Device
from laminabench.catalog.kernels import load_kernels, with_kernels
from laminabench.catalog.ranges import Span
from laminabench.catalog.step import decode_attention, priced, summed
from laminabench.systems.modelled.setup import Setup
from laminabench.util.errors import UserError

# Rows at which cost sets are compared: batches of long requests and of short ones.
ROWS = (32, 512)


def gemm_span(setup: Setup, device: Device) -> Span:
    """Return the cost sets' range of speeds of the model's matrix products, within each one's error.

    At few rows and at many: they agree about reading weights, and not about computing.
    """
    model, layout = setup.model, setup.deployment.model.shared()
    ratios: dict[str, tuple[float, float]] = {}

    def seconds(costs: CostSet) -> Float64:
        return summed(priced(costs, device, model.products(layout), np.array(ROWS, np.float64)))

    here = seconds(setup.costs)
    for costs in _sets_with(setup.costs, device):
        try:
            ratio = here / seconds(costs)
            error = _error_of(costs.gemm_cost(device, model.dtype).origin.errors)
        except UserError:  # not of this type
            continue
        ratios[costs.name] = float(ratio.min() * (1 - error)), float(ratio.max() * (1 + error))
    return _span(ratios, setup.costs, device, f"at {ROWS[0]} to {ROWS[1]} rows")


def attention_span(setup: Setup, device: Device) -> Span:
    """Return the share of memory bandwidth that attention reaches by cost sets, within the fit's error.

    A device that borrows another's may reach what any that was measured does, and one with a named kernel
    what any kernel does.
    """
    model = setup.model
    if not model.latent and setup.costs.attention_cost(device).kernel:
        return _kernel_span(setup, device)

    def share(costs: CostSet, on: Device) -> tuple[float, float]:
        if model.latent:
            cost = costs.latent_cost(on, model.kv_dtype)
            return cost.bandwidth_efficiency, _error_of(cost.origin.errors)
        fitted = costs.attention_cost(on, model.head_dim, model.kv_dtype)
        return fitted.bandwidth_efficiency, _error_of(fitted.origin.errors)

    here, _ = share(setup.costs, device)
    borrowed = setup.costs.measured_as(device) != device.name
    ratios: dict[str, tuple[float, float]] = {}
    for costs in _sets_with(setup.costs, device):
        own = sorted(name for name, cost in costs.attention.items() if not cost.kernel)
        names = own if borrowed else [device.name]
        for name in names:
            try:
                reached, error = share(costs, replace(device, name=name))
            except UserError:
                continue
            of = f"{costs.name} ({name})" if borrowed else costs.name
            ratios[of] = reached * (1 - error) / here, reached * (1 + error) / here
    return _span(ratios, setup.costs, device, "by shares of memory bandwidth")


def _kernel_span(setup: Setup, device: Device) -> Span:
    """Return the range of rates of reading KV from the slowest kernel to the fastest."""

    def per_token(costs: CostSet) -> float:
        return float(decode_attention(costs, setup.model, device, 1, ROWS[1]).per_token_s)

    here = per_token(setup.costs)
    rates = {
        name: here / per_token(with_kernels(setup.costs, (f"{device.name}={name}",)))
        for name, kernel in load_kernels().items()
        if not kernel.latent
    }
    slowest, fastest = min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__)
    used = setup.costs.attention_cost(device).kernel
    source = f"{used}'s; from {slowest} to {fastest}, as measured (docs/costs.md, The attention kernel)"
    return Span(rates[slowest], rates[fastest], "measured", source)


def _sets_with(own: CostSet, device: Device) -> Iterator[CostSet]:
    """Yield this one, and the catalogue's others that know the device, by measurements of it or another's."""
    yield own
    for other in (load_costs(name) for name in COST_SETS if name != own.name):
        try:
            stands_for = other.measured_as(device)
        except UserError:
            continue
        if any(of == stands_for and cost.origin.kind in MEASURED for (of, _), cost in other.gemm.items()):
            yield other


def _error_of(errors: Mapping[str, float]) -> float:
    """Return a fit's error, on held-out measurements if known."""
    for name in ("held_out_layer", "held_out_op", "op"):
        if name in errors:
            return errors[name] / 100
    return 0.0


def _span(ratios: Mapping[str, tuple[float, float]], own: CostSet, device: Device, how: str) -> Span:
    slowest = min(ratios, key=lambda name: ratios[name][0])
    fastest = max(ratios, key=lambda name: ratios[name][1])
    stands_for = own.measured_as(device)
    borrowed = ""
    if stands_for != device.name:
        borrowed = f"; {own.name} has no measurement of {device.name}"
        borrowed += "" if stands_for == ANY else f", and takes {stands_for}'s"
    others = " and ".join(name for name in dict.fromkeys((slowest, fastest)) if name != own.name)
    text = f"{own.name} held against {others} {how}" if others else f"{own.name} {how}"
    scaled = "; scaled from another device" if own.scaled(device.name) else ""
    source = f"{text}, give or take the errors of fits{borrowed}{scaled}"
    low, high = min(ratios[slowest][0], 1.0), max(ratios[fastest][1], 1.0)
    return Span(low, high, "assumed" if borrowed else "measured", source)
