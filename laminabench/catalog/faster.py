"""A cost set in which one operation of a device is so many times as fast, however it is priced there."""

from __future__ import annotations

from collections.abc import Mapping
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
    own = device.name
    measured = costs.measured
    return replace(
        costs,
        gemm=_of(costs.gemm, costs.source_of(costs.gemm, device), times),
        experts=_of(costs.experts, costs.source_of(costs.experts, device), times),
        measured=replace(
            measured,
            gemm=_of(measured.gemm, own, times),
            experts=_of(measured.experts, own, times),
        ),
    )


def attention_faster(costs: CostSet, device: Device, times: float) -> CostSet:
    """Make decode attention faster, with any kind of KV."""
    own, stands_for = device.name, costs.source_of(costs.attention, device)
    measured = costs.measured
    grids = {
        key: _grids(grid, times) if key.device == own else grid for key, grid in measured.attention.items()
    }
    return replace(
        costs,
        attention=_of(costs.attention, stands_for, times),
        attention_of=_of(costs.attention_of, stands_for, times),
        latent=_of(costs.latent, costs.source_of(costs.latent, device), times),
        measured=replace(
            measured,
            attention=grids,
            lines=_of(measured.lines, own, times),
            latent=_of(measured.latent, own, times),
            tiles=_of(measured.tiles, own, times),
        ),
    )


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
