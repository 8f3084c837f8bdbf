"""RDMA devices and their ports, from pyverbs and the kernel."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import socket
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

# PyPI's pyverbs is built from source, which takes libibverbs' headers and a new Python (59 does not build for
# 3.11). Debian's python3-pyverbs is compiled for the system's Python and lies outside every virtual
# environment. Where this interpreter is that version, the one package is taken from there and nothing else.
SYSTEM_PACKAGES = Path("/usr/lib/python3/dist-packages")


class NoPyverbsError(ImportError):
    """pyverbs is not installed or cannot be loaded; the message says how to install it."""


def pyverbs(system: Path = SYSTEM_PACKAGES) -> ModuleType:
    """Import and return the package `pyverbs`."""
    if "pyverbs" in sys.modules:
        return sys.modules["pyverbs"]
    spec = importlib.util.find_spec("pyverbs") or _of_the_system(system)
    if spec is None or spec.loader is None:
        raise NoPyverbsError(_how_to_get_it(system))
    module = importlib.util.module_from_spec(spec)
    sys.modules["pyverbs"] = module
    try:
        spec.loader.exec_module(module)
        importlib.import_module("pyverbs.device")
    except ImportError as error:  # libibverbs was removed, or is of another version
        for name in [name for name in sys.modules if name.partition(".")[0] == "pyverbs"]:
            del sys.modules[name]
        raise NoPyverbsError(f"pyverbs cannot be loaded ({error}): install it again") from error
    return module


def _of_the_system(system: Path) -> importlib.machinery.ModuleSpec | None:
    package = system / "pyverbs"
    if not (package / f"device{sysconfig.get_config_var('EXT_SUFFIX')}").exists():
        return None
    return importlib.util.spec_from_file_location(
        "pyverbs", package / "__init__.py", submodule_search_locations=[str(package)]
    )


def _how_to_get_it(system: Path) -> str:
    for_another = sorted((system / "pyverbs").glob("device.cpython-*.so"))
    if for_another:
        version = for_another[0].name.split("-")[1]
        return (
            f"pyverbs in {system} is for CPython {version[0]}.{version[1:]} and this is "
            f"{sys.version_info[0]}.{sys.version_info[1]}: pip install 'laminabench[rdma]'"
        )
    return (
        "pyverbs is not installed: on Debian and Ubuntu 'apt-get install python3-pyverbs', "
        "elsewhere pip install 'laminabench[rdma]'"
    )


SYSFS = Path("/sys")
# Of enum ibv_port_state, ibv_link_layer, ibv_transport_type and ibv_gid_type.
_STATES = {0: "no change", 1: "down", 2: "initializing", 3: "armed", 4: "active", 5: "active, deferred"}
_LINK_LAYERS = {1: "InfiniBand", 2: "Ethernet"}
_TRANSPORTS = {0: "InfiniBand", 1: "iWARP", 2: "usNIC", 3: "usNIC over UDP"}
_GID_TYPES = {0: "InfiniBand", 1: "RoCE v1", 2: "RoCE v2"}
_RXE_VENDOR = 0xFFFFFF


@dataclass(frozen=True)
class Gid:
    """An address of a port; over Ethernet, for one version of RoCE and one interface."""

    index: int
    address: str
    kind: str
    interface: str | None


@dataclass(frozen=True)
class Port:
    """One port of a device."""

    number: int
    state: str
    link_layer: str
    mtu: int
    lid: int
    speed: str
    gids: tuple[Gid, ...]


@dataclass(frozen=True)
class Device:
    """A device opened by libibverbs."""

    name: str
    provider: str
    transport: str
    firmware: str
    vendor_id: int
    part_id: int
    max_queue_pairs: int
    ports: tuple[Port, ...]


@dataclass(frozen=True)
class Listed:
    """Devices that could be opened, and the reasons for others."""

    devices: tuple[Device, ...]
    refused: dict[str, str]


def listed(sysfs: Path = SYSFS) -> Listed:
    """Return every device of libibverbs; raise NoPyverbsError if pyverbs is not available."""
    pyverbs()
    verbs: Any = importlib.import_module("pyverbs.device")
    try:
        entries = verbs.get_device_list()
    except verbs.PyverbsError:  # a kernel without verbs is an error of libibverbs, not an empty list
        entries = []
    devices, refused = [], {}
    for entry in entries:
        name = entry.name.decode()
        try:
            with verbs.Context(name=name) as context:
                devices.append(_device(verbs, context, name, entry.transport_type, sysfs))
        except verbs.PyverbsError as error:
            refused[name] = str(error)
    return Listed(tuple(devices), refused)


def _device(verbs: Any, context: Any, name: str, transport: int, sysfs: Path) -> Device:
    has = context.query_device()
    return Device(
        name=name,
        provider=_provider(sysfs / "class" / "infiniband" / name, transport, has.vendor_id),
        transport=_TRANSPORTS.get(transport, "unknown"),
        firmware=has.fw_version or "none",
        vendor_id=has.vendor_id,
        part_id=has.vendor_part_id,
        max_queue_pairs=has.max_qp,
        ports=tuple(_port(verbs, context, number) for number in range(1, has.phys_port_cnt + 1)),
    )


def _provider(folder: Path, transport: int, vendor: int) -> str:
    """Return the provider: the PCI device's driver such as mlx5, or the kernel's software device."""
    if vendor == _RXE_VENDOR:  # older kernels give it the bus of its NIC
        return "rxe"
    driver = folder / "device" / "driver"
    if driver.is_symlink():
        # A scalable function of a NIC has the driver mlx5_core.sf.
        return driver.readlink().name.partition(".")[0].removesuffix("_core").removesuffix("_ib")
    return "siw" if _TRANSPORTS.get(transport) == "iWARP" else "unknown"


def _port(verbs: Any, context: Any, number: int) -> Port:
    has = context.query_port(number)
    gids = tuple(_gids(verbs, context, number, has.gid_tbl_len))
    return Port(
        number=number,
        state=_STATES.get(has.state, f"unknown ({has.state})"),
        link_layer=_LINK_LAYERS.get(has.link_layer, "unspecified"),
        mtu=128 << has.active_mtu,  # enum ibv_mtu has 256 as 1
        lid=has.lid,
        speed=" ".join(
            text.partition(" (")[0]
            for text in (verbs.width_to_str(has.active_width), verbs.speed_to_str(has.active_speed))
        ),
        gids=gids,
    )


def _gids(verbs: Any, context: Any, port: int, length: int) -> Iterator[Gid]:
    for index in range(length):
        try:
            entry = context.query_gid_ex(port_num=port, gid_index=index)
        except verbs.PyverbsError:  # an index without an address
            continue
        interface = None
        with contextlib.suppress(OSError):  # the interface is in another network namespace
            interface = socket.if_indextoname(entry.ndev_ifindex)
        yield Gid(index, entry.gid_str(), _GID_TYPES.get(entry.gid_type, "unknown"), interface)
