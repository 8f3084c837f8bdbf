"""Boards that are other hardware than the device whose price and watts the catalogue has."""

from __future__ import annotations

from dataclasses import replace

from laminabench.catalog.deployment import Deployment, Workers
from laminabench.systems.modelled.setup import Setup

# Mappings for which the paper puts the chips at other memories than an H2M2 board does.
_BUILDS = {
    "lpddr": "both chips at LPDDR and no HBM",
    "hierarchical": "both chips at HBM",
    "8-hbm": "{devices} HBM devices and no LPDDR",
}


def other_board(setup: Setup) -> str | None:
    """What the boards are made of, where that is not what the device is; None if it is."""
    kind = setup.deployment.model.device.board
    if kind is None:
        return None
    from laminabench.systems.modelled.h2m2.boards import board

    on = board(setup.board or kind)
    if setup.mapping in _BUILDS:
        return _BUILDS[setup.mapping].format(devices=on.hbm_devices)
    return None if on.bought_as(board(kind)) else on.title


def at_own_price(setup: Setup) -> Setup:
    """Without the device's price and watts, where the boards are other hardware; the user's own stay."""
    if other_board(setup) is None:
        return setup
    workers = setup.deployment.model
    varied = Workers(workers.device.varied(), workers.count)
    return replace(setup, deployment=Deployment(varied, setup.deployment.attention))


def unpriced(setup: Setup) -> str:
    """That the catalogue's price and watts are left out, and how to give some; empty if all are given."""
    other, device = other_board(setup), setup.deployment.model.device.name
    known = (("price", "USD", setup.deployment.usd_per_hour), ("power", "WATTS", setup.deployment.power_w))
    missing = [(name, f"--{name} {device}={unit}") for name, unit, value in known if value is None]
    if other is None or not missing:
        return ""
    names, flags = (" and ".join(words) for words in zip(*missing, strict=True))
    return (
        f"no {names} of these boards is known, as they are other hardware than {device}: "
        f"{other}; {flags} would say it"
    )
