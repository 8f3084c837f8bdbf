"""What the NVIDIA driver allows between a GPU and a NIC."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

_DMA_BUF_SUPPORTED = 124  # CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
_OVERRIDE = "PeerMappingOverride=1"


@dataclass(frozen=True)
class Gpu:
    """Of the first device; `count` is 0 where there is none, or no driver."""

    count: int
    why_none: str | None
    peermem: bool  # the module through which verbs take a GPU's address as they take any
    dmabuf: bool  # the driver hands a GPU's memory out as a file that verbs can register
    maps_registers: bool  # a GPU's kernels may be given the NIC's doorbell page


def gpu_below(root: Path = Path("/")) -> Gpu:
    """Of this machine, or of what is laid out like one below `root`."""
    count, dmabuf, why_none = _asked()
    modules = root / "sys/module"
    return Gpu(
        count=count,
        why_none=why_none,
        peermem=(modules / "nvidia_peermem").is_dir() or (modules / "nv_peer_mem").is_dir(),
        dmabuf=dmabuf,
        maps_registers=_maps_registers(root / "proc/driver/nvidia/params"),
    )


def _asked() -> tuple[int, bool, str | None]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, False, "there is no NVIDIA driver (libcuda.so.1)"
    status = driver.cuInit(0)
    if status != 0:
        return 0, False, f"the NVIDIA driver cannot start (cuInit gave error {status})"
    count, supported, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        return 0, False, "the NVIDIA driver has no device for this process"
    if driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDeviceGetAttribute(ctypes.byref(supported), _DMA_BUF_SUPPORTED, device)
    return count.value, bool(supported.value), None


def _maps_registers(parameters: Path) -> bool:
    """Registering another device's registers takes root, or an option of the driver's."""
    try:
        options = parameters.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return os.geteuid() == 0 or _OVERRIDE in options
