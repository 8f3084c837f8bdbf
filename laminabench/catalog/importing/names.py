"""Catalogue names for devices in other projects' folders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from laminabench.catalog.hardware import Device, device, load_devices
from laminabench.util.errors import UserError

# Names that are not the catalogue's own; all A100s in public tables are those of 80 GB on SXM.
KNOWN = {
    "a100": "a100-80g-sxm",
    "a100sxm": "a100-80g-sxm",
    "h100sxm": "h100",
    "h200sxm": "h200",
    "b200sxm": "b200",
}


def device_called(theirs: str, devices: Mapping[str, str], where: Path) -> Device:
    """Return the catalogue's device: mapped by `devices` (--device), or by its plain name."""
    plain = {_letters(name): name for name in load_devices()} | KNOWN
    name = devices.get(theirs) or plain.get(_letters(theirs))
    if name is None:
        raise UserError(
            "costs-unknown-device",
            f"{where}: no device of the catalogue is called {theirs or '?'}; say which one it is by "
            f"--device {theirs or 'NAME'}=..., or give only the folders of the others",
        )
    return device(name)


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())
