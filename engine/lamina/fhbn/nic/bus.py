"""PCI topology of RDMA devices and GPUs."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from pathlib import Path

_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
# In a bridge's configuration: the first extended capability, the ID of Access Control Services, and their bit
# that redirects peer-to-peer requests to the root.
_FIRST, _ACS, _REDIRECT = 0x100, 0x000D, 0x0004
_MOST_CAPABILITIES = 64


def nearest(gpu: str, root: Path = Path("/")) -> str | None:
    """Return the RDMA device that shares the most bridges with the GPU at a PCI address such as 0000:17:00.0.

    The first of equally near ones; None if there are fewer than two devices.
    """
    nics, place = _nics(root), root / "sys/bus/pci/devices" / gpu.lower()
    if len(nics) < 2 or not place.exists():
        return None
    way = place.resolve()
    shared = {name: len(Path(os.path.commonpath([way, nic])).parts) for name, nic in nics.items()}
    return max(nics, key=shared.__getitem__)


def translated(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the RDMA devices behind an IOMMU that translates addresses."""
    return tuple(
        name for name, nic in _nics(root).items() if text(nic / "iommu_group/type").startswith("DMA")
    )


def redirecting(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the bridges above RDMA devices and GPUs that redirect peer-to-peer requests to the root.

    Only root can read a bridge's configuration; other users get none.
    """
    ends = [*_nics(root).values(), *_gpus(root)]
    bridges = {
        folder.name: folder for end in ends for folder in end.parents if _ADDRESS.fullmatch(folder.name)
    }
    return tuple(sorted(name for name, folder in bridges.items() if _redirects(folder)))


def _nics(root: Path) -> dict[str, Path]:
    folder = root / "sys/class/infiniband"
    return {name: (folder / name / "device").resolve() for name in names(folder)}


def _gpus(root: Path) -> Iterator[Path]:
    folder = root / "sys/bus/pci/devices"
    for name in names(folder):
        path = folder / name
        if text(path / "vendor") == _NVIDIA and text(path / "class").startswith(_DISPLAY):
            yield path.resolve()


def _redirects(bridge: Path) -> bool:
    try:
        config = (bridge / "config").read_bytes()
    except OSError:
        return False
    at = _FIRST
    for _ in range(_MOST_CAPABILITIES):
        if not 0 < at <= len(config) - 8:
            break
        head = int.from_bytes(config[at : at + 4], "little")
        if head & 0xFFFF == _ACS:
            return bool(int.from_bytes(config[at + 6 : at + 8], "little") & _REDIRECT)
        at = head >> 20
    return False


def names(folder: Path) -> tuple[str, ...]:
    """Return the names in a folder, or none if it does not exist."""
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()


def text(path: Path) -> str:
    """Return the text of a kernel file, or "" if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


_IPV4 = 4


def ports_on_the_way(own_host: str, root: Path = Path("/")) -> list[str]:
    """Return the ports, such as mlx5_0:1, that have this address of the machine as a GID (RoCE)."""
    try:
        address = ipaddress.ip_address(own_host)
    except ValueError:
        return []
    expected = ipaddress.IPv6Address(f"::ffff:{own_host}" if address.version == _IPV4 else own_host).exploded
    folder = root / "sys/class/infiniband"
    return [
        f"{device}:{port}"
        for device in names(folder)
        for port in names(folder / device / "ports")
        for gids in [folder / device / "ports" / port / "gids"]
        if any(text(gids / number) == expected for number in names(gids))
    ]
