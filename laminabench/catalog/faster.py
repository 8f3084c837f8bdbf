"""A cost set in which one operation of a device is so many times as fast, however it is priced there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec.structs import asdict, replace

from laminabench.catalog.costs import CostSet
from laminabench.catalog.hardware import Device
from laminabench.catalog.measured import AttentionGrids

Key = TypeVar("Key")
Priced = TypeVar("Priced")


def gemms_faster(costs: CostSet, device: Device, times: float) -> CostSet:
    """Matrix products, those of experts too."""
    stands_for, own = costs.measured_as(device), device.name
    measured = costs.measured
    return replace(
        costs,
        gemm=_of(costs.gemm, stands_for, times),
        experts=_of(costs.experts, stands_for, times),
        measured=replace(
            measured,
            gemm=_of(measured.gemm, own, times),
            experts=_of(measured.experts, own, times),
        ),
    )


def attention_faster(costs: CostSet, device: Device, times: float) -> CostSet:
    """Attention of who decodes, with any kind of KV."""
    stands_for, own = costs.measured_as(device), device.name
    measured = costs.measured
    grids = {key: _grids(grid, times) if key[0] == own else grid for key, grid in measured.attention.items()}
    return replace(
        costs,
        attention=_of(costs.attention, stands_for, times),
        attention_of=_of(costs.attention_of, stands_for, times),
        latent=_of(costs.latent, stands_for, times),
        measured=replace(
            measured,
            attention=grids,
            lines=_of(measured.lines, own, times),
            latent=_of(measured.latent, own, times),
        ),
    )


def _of(priced: Mapping[Key, Priced], device: str, times: float) -> dict[Key, Priced]:
    """The same with the device's faster; it is the key, or the first part of it."""
    return {
        key: _sooner(each, times) if device in (key, key[0] if isinstance(key, tuple) else key) else each
        for key, each in priced.items()
    }


def _sooner(priced: Any, times: float) -> Any:
    """A term or a curve: seconds are fewer, and shares of the peak larger."""
    changed: dict[str, Any] = {}
    for name, value in asdict(priced).items():
        if name.endswith("_s") or name in ("seconds", "activation"):
            changed[name] = value / times
        elif name.endswith("_efficiency"):
            changed[name] = value * times
    return replace(priced, **changed)


def _grids(grids: AttentionGrids, times: float) -> AttentionGrids:
    """Those of who decodes."""
    decode, mixed = (replace(grid, values=grid.values / times) for grid in (grids.decode, grids.mixed))
    return replace(grids, decode=decode, mixed=mixed)
