"""This machine's NVIDIA GPUs, and which of them a deployment means."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from laminabench.util.child_environment import child_environment
from laminabench.util.errors import UserError

LISTED_S = 60.0  # for nvidia-smi to say what there is
# Of a catalogue's name, what a driver does not say: how much memory, and on what board.
_UNSAID = re.compile(r"\d+g|sxm|pcie")
_MPS = "/tmp/nvidia-mps"  # where its daemon listens by default
_LINE = re.compile(r"GPU \d+: (.+) \(UUID: (.+)\)")


def names() -> list[str]:
    """Return the driver's names of the GPUs that this process may use, in CUDA's order.

    That is the bus's, which users of them set (CUDA_DEVICE_ORDER).
    """
    if shutil.which("nvidia-smi") is None:
        return []
    listing = subprocess.run(
        ["nvidia-smi", "-L"],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=LISTED_S,
    ).stdout
    gpus = _LINE.findall(listing)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [name for name, _ in gpus]
    numbers = []
    for entry in filter(None, visible.split(",")):
        by_number = gpus[int(entry) : int(entry) + 1] if entry.isdecimal() else []
        matching = by_number or [gpu for gpu in gpus if gpu[1].startswith(entry)]
        if not matching:  # nor does CUDA look at those behind it
            break
        numbers.append(matching[0][0])
    return numbers


def is_called(name: str, device: str) -> bool:
    """Return whether the driver's name is that of a device of the catalogue."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return all(part in words for part in device.split("-") if not _UNSAID.fullmatch(part))


def shared_by_processes() -> bool:
    """Return whether NVIDIA's MPS runs, which lets processes use a GPU at the same time."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS), "control").exists()


def pick(device: str, count: int, instead: str) -> list[int]:
    """Return so many of this machine's GPUs, as CUDA counts them; a UserError suggests `instead`."""
    here = names()
    numbers = [number for number, name in enumerate(here) if is_called(name, device)]
    if len(numbers) < count:
        has = f"{len(numbers)} {device} and not {count}" if numbers else f"no {device}"
        raise UserError(
            "deployment-no-gpu",
            f"a live replay runs on this machine, which has {has} (its GPUs: "
            f"{', '.join(here) or 'none, or no nvidia-smi'}); use {instead}",
        )
    return numbers[:count]
