"""What this process finds of the system below RDMA: libraries, the kernel's files, its limits, its GPUs."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path

from lamina.fhbn.nic import bus

_MELLANOX = "0x15b3"
_NETWORK_CLASSES = ("0x0200", "0x0207")  # Ethernet and InfiniBand controllers
_CAP_IPC_LOCK = 14
_UNMAPPED = ["0", "0", "4294967295"]
# CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, ..._GPU_DIRECT_RDMA_WRITES_ORDERING, and of that what kernels need.
_DMA_BUF_SUPPORTED, _WRITES_ORDERING, _ORDERED_FOR_OWNER = 124, 118, 100
_OVERRIDE = "PeerMappingOverride=1"


@dataclass(frozen=True)
class GpuMemory:
    """What the driver says of one GPU's."""

    dmabuf: bool  # it is handed out as a file that verbs can register
    ordered: bool  # the GPU's own kernels see what a NIC writes there in the order in which it is written


@dataclass(frozen=True)
class Gpu:
    """Of all devices; there is none where there is no driver."""

    memories: tuple[GpuMemory, ...]
    why_none: str | None
    peermem: bool  # the module through which verbs take a GPU's address as they take any
    maps_registers: bool  # a GPU's kernels may be given the NIC's doorbell page


@dataclass(frozen=True)
class System:
    """Facts only; what follows from them is `diagnosis`."""

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
    translated: tuple[str, ...]  # RDMA devices behind an IOMMU
    redirecting: tuple[str, ...]  # bridges that keep devices from reaching each other directly
    gpu: Gpu


def system_below(root: Path = Path("/")) -> System:
    """Of this machine, or of what is laid out like one below `root`."""
    verbs = _library("libibverbs.so.1")
    return System(
        kernel=platform.release(),
        loads_modules=(root / "proc/modules").exists(),
        has_verbs=(root / "sys/class/infiniband_verbs").is_dir(),
        kernel_devices=bus.names(root / "sys/class/infiniband"),
        mellanox_on_pci=tuple(_mellanox(root / "sys/bus/pci/devices")),
        closed_files=_closed(root),
        libibverbs=verbs is not None,
        libmlx5=_library("libmlx5.so.1") is not None,
        registers_dmabuf=hasattr(verbs, "ibv_reg_dmabuf_mr"),
        memlock_bytes=_memlock_bytes(root / "proc/self"),
        translated=bus.translated(root),
        redirecting=bus.redirecting(root),
        gpu=_gpu_below(root),
    )


def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _mellanox(devices: Path) -> list[str]:
    """Addresses of NVIDIA's (Mellanox's) network controllers."""
    if not devices.is_dir():
        return []
    return sorted(
        path.name
        for path in devices.iterdir()
        if bus.text(path / "vendor") == _MELLANOX and bus.text(path / "class").startswith(_NETWORK_CLASSES)
    )


def _closed(root: Path) -> dict[str, str]:
    """Device files that verbs go through and that this process may not use, or that are missing."""
    folder = root / "sys/class/infiniband_verbs"
    return {
        bus.text(folder / name / "ibdev") or name: f"/dev/infiniband/{name}"
        for name in bus.names(folder)
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
    for line in bus.text(process / "status").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff" and not int(value, 16) >> _CAP_IPC_LOCK & 1:
            return False
    return bus.text(process / "uid_map").split() == _UNMAPPED


def _gpu_below(root: Path) -> Gpu:
    memories, why_none = _asked()
    modules = root / "sys/module"
    return Gpu(
        memories=memories,
        why_none=why_none,
        peermem=(modules / "nvidia_peermem").is_dir() or (modules / "nv_peer_mem").is_dir(),
        maps_registers=_maps_registers(root / "proc/driver/nvidia/params"),
    )


def _asked() -> tuple[tuple[GpuMemory, ...], str | None]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (), "there is no NVIDIA driver (libcuda.so.1)"
    status = driver.cuInit(0)
    if status != 0:
        return (), f"the NVIDIA driver cannot start (cuInit gave error {status})"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        return (), "the NVIDIA driver has no device for this process"
    return tuple(_memory(driver, number) for number in range(count.value)), None


def _memory(driver: ctypes.CDLL, number: int) -> GpuMemory:
    def asked(attribute: int) -> int:
        device, value = ctypes.c_int(), ctypes.c_int()
        if driver.cuDeviceGet(ctypes.byref(device), number) == 0:
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        return value.value

    return GpuMemory(bool(asked(_DMA_BUF_SUPPORTED)), asked(_WRITES_ORDERING) >= _ORDERED_FOR_OWNER)


def _maps_registers(parameters: Path) -> bool:
    """Registering another device's registers takes root, or an option of the driver's."""
    return parameters.exists() and (os.geteuid() == 0 or _OVERRIDE in bus.text(parameters))
