"""How RDMA devices and GPUs lie on the bus: who is near to whom, and what is between them."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from pathlib import Path

_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
# Of a bridge's configuration: where extended capabilities begin, what Access Control Services are called, and
# the bit by which they send what devices say to each other up to the root.
_FIRST, _ACS, _REDIRECT = 0x100, 0x000D, 0x0004
_MOST_CAPABILITIES = 64


def nearest(gpu: str, root: Path = Path("/")) -> str | None:
    """Of several RDMA devices that which shares most bridges with the GPU at this address on the bus, such as
    0000:17:00.0; of equally near ones the first. None where there is nothing to choose from.
    """
    nics, place = _nics(root), root / "sys/bus/pci/devices" / gpu.lower()
    if len(nics) < 2 or not place.exists():
        return None
    way = place.resolve()
    shared = {name: len(Path(os.path.commonpath([way, nic])).parts) for name, nic in nics.items()}
    return max(nics, key=shared.__getitem__)


def translated(root: Path = Path("/")) -> tuple[str, ...]:
    """RDMA devices whose addresses an IOMMU translates."""
    return tuple(
        name for name, nic in _nics(root).items() if text(nic / "iommu_group/type").startswith("DMA")
    )


def redirecting(root: Path = Path("/")) -> tuple[str, ...]:
    """Bridges above RDMA devices and GPUs that send up to the root what these say to each other.

    Who is not root sees no bridge's configuration, and finds none.
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
    """What is in it; nothing if there is none such."""
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()


def text(path: Path) -> str:
    """What a file of the kernel says; nothing if it says nothing."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


_IPV4 = 4


def ports_on_the_way(own_host: str, root: Path = Path("/")) -> list[str]:
    """Ports, such as mlx5_0:1, that have this address of a machine among their own, as RoCE's have."""
    try:
        address = ipaddress.ip_address(own_host)
    except ValueError:
        return []
    wanted = ipaddress.IPv6Address(f"::ffff:{own_host}" if address.version == _IPV4 else own_host).exploded
    folder = root / "sys/class/infiniband"
    return [
        f"{device}:{port}"
        for device in names(folder)
        for port in names(folder / device / "ports")
        for gids in [folder / device / "ports" / port / "gids"]
        if any(text(gids / number) == wanted for number in names(gids))
    ]
