"""System facts that RDMA depends on: libraries, kernel files, limits and GPUs."""

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
# CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, ..._GPU_DIRECT_RDMA_WRITES_ORDERING, and the least order for kernels.
_DMA_BUF_SUPPORTED, _WRITES_ORDERING, _ORDERED_FOR_OWNER = 124, 118, 100
_OVERRIDE = "PeerMappingOverride=1"


@dataclass(frozen=True)
class GpuMemory:
    """RDMA properties of one GPU's memory, from its driver."""

    dmabuf: bool  # exported as a dmabuf that verbs can register
    ordered: bool  # the GPU's kernels see a NIC's writes in order


@dataclass(frozen=True)
class Gpu:
    """Properties of all GPUs; none without a driver."""

    memories: tuple[GpuMemory, ...]
    why_none: str | None
    peermem: bool  # nvidia-peermem, with which verbs register GPU addresses
    maps_registers: bool  # the NIC's doorbell page may be mapped into a GPU


@dataclass(frozen=True)
class System:
    """Facts of the system, from which `diagnosis` draws conclusions."""

    kernel: str
    loads_modules: bool
    has_verbs: bool
    kernel_devices: tuple[str, ...]
    mellanox_on_pci: tuple[str, ...]
    closed_files: dict[str, str]  # by device
    libibverbs: bool
    libmlx5: bool
    registers_dmabuf: bool
    memlock_bytes: int | None
    translated: tuple[str, ...]  # RDMA devices behind an IOMMU
    redirecting: tuple[str, ...]  # bridges that keep devices from reaching each other directly
    gpu: Gpu


def system_below(root: Path = Path("/")) -> System:
    """Return the facts of this machine, or of a file tree like one below `root`."""
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
    """Return the PCI addresses of NVIDIA (Mellanox) network controllers."""
    if not devices.is_dir():
        return []
    return sorted(
        path.name
        for path in devices.iterdir()
        if bus.text(path / "vendor") == _MELLANOX and bus.text(path / "class").startswith(_NETWORK_CLASSES)
    )


def _closed(root: Path) -> dict[str, str]:
    """Return verbs' device files that are missing or not accessible to this process."""
    folder = root / "sys/class/infiniband_verbs"
    return {
        bus.text(folder / name / "ibdev") or name: f"/dev/infiniband/{name}"
        for name in bus.names(folder)
        if name.startswith("uverbs") and not os.access(root / "dev/infiniband" / name, os.R_OK | os.W_OK)
    }


def _memlock_bytes(process: Path) -> int | None:
    """Return how many bytes this process may register; None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY or _may_lock_all(process):
        return None
    return limit


def _may_lock_all(process: Path) -> bool:
    """Return whether CAP_IPC_LOCK is effective, which it is not in a nested user namespace."""
    for line in bus.text(process / "status").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff" and not int(value, 16) >> _CAP_IPC_LOCK & 1:
            return False
    return bus.text(process / "uid_map").split() == _UNMAPPED


def _gpu_below(root: Path) -> Gpu:
    memories, why_none = _query_driver()
    modules = root / "sys/module"
    return Gpu(
        memories=memories,
        why_none=why_none,
        peermem=(modules / "nvidia_peermem").is_dir() or (modules / "nv_peer_mem").is_dir(),
        maps_registers=_maps_registers(root / "proc/driver/nvidia/params"),
    )


def _query_driver() -> tuple[tuple[GpuMemory, ...], str | None]:
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
    def attribute_of(attribute: int) -> int:
        device, value = ctypes.c_int(), ctypes.c_int()
        if driver.cuDeviceGet(ctypes.byref(device), number) == 0:
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        return value.value

    return GpuMemory(
        bool(attribute_of(_DMA_BUF_SUPPORTED)), attribute_of(_WRITES_ORDERING) >= _ORDERED_FOR_OWNER
    )


def _maps_registers(parameters: Path) -> bool:
    """Return whether another device's registers can be mapped, as root or with a driver option."""
    return parameters.exists() and (os.geteuid() == 0 or _OVERRIDE in bus.text(parameters))
