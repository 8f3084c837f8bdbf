"""A cost set in which one operation of a device is so many times as fast, however it is priced there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from laminabench.catalog.cost_terms import coefficients
from laminabench.catalog.costs import CostSet
from laminabench.catalog.hardware import Device
from laminabench.catalog.measured import AttentionGrids

Key = TypeVar("Key")
Priced = TypeVar("Priced", bound=msgspec.Struct)


def gemms_faster(costs: CostSet, device: Device, times: float) -> CostSet:
    """Make matrix products faster, those of experts too."""
    terms = {name: costs.source_of(getattr(costs, name), device) for name in ("gemm", "experts")}
    return _faster(costs, device, times, terms, ("gemm", "experts"))


def attention_faster(costs: CostSet, device: Device, times: float) -> CostSet:
    """Make decode attention faster, with any kind of KV."""
    stands_for = costs.source_of(costs.attention, device)
    terms = dict.fromkeys(("attention", "attention_of"), stands_for)
    terms["latent"] = costs.source_of(costs.latent, device)
    changed = _faster(costs, device, times, terms, ("lines", "latent", "tiles"))
    grids = {
        key: _grids(grid, times) if key.device == device.name else grid
        for key, grid in costs.measured.attention.items()
    }
    return replace(changed, measured=replace(changed.measured, attention=grids))


def _faster(
    costs: CostSet, device: Device, times: float, terms: Mapping[str, str], measured: Iterable[str]
) -> CostSet:
    """Make some terms faster, each of the device that has them, and measured times of the device itself."""
    curves = {name: _of(getattr(costs.measured, name), device.name, times) for name in measured}
    formulas = {name: _of(getattr(costs, name), on, times) for name, on in terms.items()}
    return replace(costs, **formulas, measured=replace(costs.measured, **curves))


def _of(priced: Mapping[Key, Priced], device: str, times: float) -> dict[Key, Priced]:
    """Return the same with those of the device faster; it is the key, or a part of it."""
    return {
        key: _sooner(each, times) if getattr(key, "device", key) == device else each
        for key, each in priced.items()
    }


def _sooner(priced: Priced, times: float) -> Priced:
    """Return a formula or a curve with fewer seconds and larger shares of the peak."""
    changed = {
        name: getattr(priced, name) / times if coefficient.role == "time" else getattr(priced, name) * times
        for name, coefficient in coefficients(type(priced)).items()
        if coefficient.role != "shape"
    }
    return replace(priced, **changed)


def _grids(grids: AttentionGrids, times: float) -> AttentionGrids:
    """Return the grids used in decoding."""
    decode, mixed = (replace(grid, values=grid.values / times) for grid in (grids.decode, grids.mixed))
    return replace(grids, decode=decode, mixed=mixed)
