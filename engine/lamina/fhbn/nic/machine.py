"""What this process finds of the system below RDMA: libraries, the kernel's files, its limits, its GPUs."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
from dataclasses import asdict, dataclass
from pathlib import Path

from lamina.fhbn.nic.gpu import Gpu, gpu_below

_MELLANOX = "0x15b3"
_NETWORK_CLASSES = ("0x0200", "0x0207")  # Ethernet and InfiniBand controllers
_CAP_IPC_LOCK = 14
_UNMAPPED = ["0", "0", "4294967295"]


@dataclass(frozen=True)
class System:
    """Facts only; what follows from them is `findings`."""

    kernel: str
    loads_modules: bool
    has_verbs: bool
    kernel_devices: tuple[str, ...]
    mellanox_on_pci: tuple[str, ...]
    closed_files: dict[str, str]  # by the device that is behind them
    libibverbs: bool
    libmlx5: bool
    registers_dmabuf: bool
    memlock_bytes: int | None
    gpu: Gpu

    def described(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def system_below(root: Path = Path("/")) -> System:
    """Of this machine, or of what is laid out like one below `root`."""
    verbs = _library("libibverbs.so.1")
    return System(
        kernel=platform.release(),
        loads_modules=(root / "proc/modules").exists(),
        has_verbs=(root / "sys/class/infiniband_verbs").is_dir(),
        kernel_devices=_names(root / "sys/class/infiniband"),
        mellanox_on_pci=tuple(_mellanox(root / "sys/bus/pci/devices")),
        closed_files=_closed(root),
        libibverbs=verbs is not None,
        libmlx5=_library("libmlx5.so.1") is not None,
        registers_dmabuf=hasattr(verbs, "ibv_reg_dmabuf_mr"),
        memlock_bytes=_memlock_bytes(root / "proc/self"),
        gpu=gpu_below(root),
    )


def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()


def _mellanox(devices: Path) -> list[str]:
    """Addresses of NVIDIA's (Mellanox's) network controllers."""
    if not devices.is_dir():
        return []
    return sorted(
        path.name
        for path in devices.iterdir()
        if _text(path / "vendor") == _MELLANOX and _text(path / "class").startswith(_NETWORK_CLASSES)
    )


def _closed(root: Path) -> dict[str, str]:
    """Device files that verbs go through and that this process may not use, or that are missing."""
    folder = root / "sys/class/infiniband_verbs"
    return {
        _text(folder / name / "ibdev") or name: f"/dev/infiniband/{name}"
        for name in _names(folder)
        if name.startswith("uverbs") and not os.access(root / "dev/infiniband" / name, os.R_OK | os.W_OK)
    }


def _memlock_bytes(process: Path) -> int | None:
    """What this process may register as memory; None if it is not limited."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY or _may_lock_all(process):
        return None
    return limit


def _may_lock_all(process: Path) -> bool:
    """CAP_IPC_LOCK counts where the kernel asks for it: not in a user namespace of its own."""
    for line in _text(process / "status").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff" and not int(value, 16) >> _CAP_IPC_LOCK & 1:
            return False
    return _text(process / "uid_map").split() == _UNMAPPED


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
