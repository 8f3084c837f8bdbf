"""Diagnosis of RDMA on this machine: findings, one sentence each, and usable engines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from lamina.fhbn.control import Place
from lamina.fhbn.engines import engine, names
from lamina.fhbn.nic.devices import Device, Listed, NoPyverbsError, Port, listed
from lamina.fhbn.nic.machine import GpuMemory, System, system_below
from lamina.fhbn.rings import HOST, VARIABLE, WAYS

RDMA = ("verbs", "mlx5", "mlx5 on a GPU")
MLX5 = ("mlx5", "mlx5 on a GPU")
ON_A_GPU = ("mlx5 on a GPU",)
# Rings of four messages and the sender's mirrors, for messages of 4 KiB and of 16 MiB.
_LEAST_MEMLOCK, _ENOUGH_MEMLOCK = 64 << 10, 256 << 20


@dataclass(frozen=True)
class Finding:
    """A problem; `blocks` are the engines that cannot be used because of it."""

    sentence: str
    blocks: tuple[str, ...] = ()


def of_the_system(system: System) -> Iterator[Finding]:
    """Check libraries, the kernel and access rights."""
    if not system.libibverbs:
        yield Finding(
            "libibverbs.so.1 cannot be loaded: install rdma-core "
            "(Debian, Ubuntu: apt-get install libibverbs1 ibverbs-providers)",
            RDMA,
        )
    elif not system.libmlx5:
        yield Finding(
            "libmlx5.so.1 cannot be loaded: install rdma-core's providers (ibverbs-providers)", MLX5
        )
    yield from _of_the_kernel(system)
    # A container may have only one of many devices.
    blocked = RDMA if system.closed_files.keys() == set(system.kernel_devices) else ()
    for name, file in system.closed_files.items():
        yield Finding(
            f"device {name} cannot be opened: {file} is not there for this process to read and write; give "
            f"this user the right to it, or a container the device (--device={file})",
            blocked,
        )
    limit = system.memlock_bytes
    if limit is not None and limit < _ENOUGH_MEMLOCK and system.kernel_devices:
        yield _of_memlock(limit)


def _of_the_kernel(system: System) -> Iterator[Finding]:
    if not system.has_verbs:
        if system.loads_modules:
            how = "load ib_uverbs (modprobe ib_uverbs)"
        else:
            how = "it loads no modules, so take another kernel, or the virtual machine of 'make rdma-test'"
        yield Finding(
            f"the kernel, {system.kernel}, has no RDMA (no /sys/class/infiniband_verbs): {how}", RDMA
        )
    elif not system.kernel_devices:
        yield Finding(
            "there is no RDMA device: load the driver of the NIC, or make one in software over any Ethernet "
            "interface (rdma link add rxe0 type rxe netdev INTERFACE)",
            RDMA,
        )
    if system.mellanox_on_pci and not system.kernel_devices:
        addresses = ", ".join(system.mellanox_on_pci)
        yield Finding(f"a Mellanox NIC is on PCI ({addresses}) and has no driver: load mlx5_ib", MLX5)


def _of_memlock(limit: int) -> Finding:
    message = f"this process may register {limit:,} bytes of memory, and both ends' rings count"
    how = "raise the limit (ulimit -l unlimited, LimitMEMLOCK=infinity, docker run --ulimit memlock=-1)"
    if limit < _LEAST_MEMLOCK:
        return Finding(f"{message}, which is too little for any channel: {how}", RDMA)
    return Finding(f"{message}: for large messages {how}")


def of_the_list(system: System, devices: Sequence[Device], refused: dict[str, str]) -> Iterator[Finding]:
    """Check for devices of the kernel that libibverbs lacks or cannot open."""
    for name, why in refused.items():
        if name not in system.closed_files:
            yield Finding(f"device {name} cannot be used: {why}")
    known = {device.name for device in devices} | refused.keys() | system.closed_files.keys()
    for name in system.kernel_devices:
        if name not in known:
            yield Finding(
                f"the kernel has device {name} and libibverbs has no provider for it: "
                "install rdma-core's ibverbs-providers"
            )


def of_the_ports(devices: Sequence[Device]) -> Iterator[Finding]:
    """Check which ports can be used."""
    usable: set[str] = set()
    for device in devices:
        for port in device.ports:
            why = unusable(device, port)
            if why is None:
                usable.add(device.provider)
            else:
                yield Finding(f"port {port.number} of {device.name} cannot be used: {why}")
    layers = {port.link_layer for device in devices for port in device.ports if not unusable(device, port)}
    if len(layers) > 1:
        yield Finding(
            "ports here are of Ethernet and of InfiniBand: the two ends of a channel need the same link layer"
        )
    if devices and not usable:
        yield Finding("no port of any device can be used", RDMA)
    elif devices and "mlx5" not in usable:
        others = ", ".join(sorted(usable))
        yield Finding(f"no usable device is a ConnectX (provider mlx5): {others} only", MLX5)


def unusable(device: Device, port: Port) -> str | None:
    """Return why a port cannot carry channels; None if it can."""
    if device.transport != "InfiniBand":
        return f"wrong link layer: it speaks {device.transport}, and channels speak InfiniBand's or RoCE's"
    if port.link_layer not in ("InfiniBand", "Ethernet"):
        return "wrong link layer: it is neither InfiniBand nor Ethernet"
    if port.state not in ("active", "active, deferred"):
        names = ", ".join(sorted({gid.interface for gid in port.gids if gid.interface})) or "its interface"
        up = f"bring {names} up" if port.link_layer == "Ethernet" else "see whether a subnet manager runs"
        return f"it is {port.state}: plug the cable in, or {up}"
    if port.link_layer == "InfiniBand" and port.lid == 0:
        return "it has no LID: see whether a subnet manager runs (opensm)"
    if port.link_layer == "Ethernet" and not any(gid.kind == "RoCE v2" for gid in port.gids):
        return "it has no GID of RoCE v2: give its interface an IP address"
    return None


def of_the_gpu(system: System) -> Iterator[Finding]:
    """Check whether GPUs can post to a NIC; NIC access to GPU memory is optional."""
    gpu = system.gpu
    if not gpu.memories:
        yield Finding(f"no GPU can post or poll: {gpu.why_none}", ON_A_GPU)
        return
    if not gpu.maps_registers:
        yield Finding(
            "no right to map a NIC's doorbell page (UAR) into the GPU: load the NVIDIA driver with "
            'NVreg_RegistryDwords="PeerMappingOverride=1;", or run as root',
            ON_A_GPU,
        )
    if system.translated:
        yield Finding(
            f"an IOMMU translates for {', '.join(system.translated)}: a GPU's doorbells may go the long way "
            "or nowhere; boot with iommu=pt"
        )
    if system.redirecting:
        yield Finding(
            f"bridges ({', '.join(system.redirecting)}) send up to the root what devices say to each other: "
            "a GPU's doorbells take the long way; turn Access Control Services (ACS) off there, in the BIOS "
            "or with setpci"
        )


@dataclass(frozen=True)
class Ring:
    """The place of a ring between a GPU and a NIC; `because` says why it is not a dmabuf."""

    gpu: int
    nic: str
    place: str
    because: str


def rings(system: System, devices: Sequence[Device]) -> Iterator[Ring]:
    """Yield the ring of each GPU with each NIC that it can post to."""
    nics = [device.name for device in devices if device.provider == "mlx5"]
    for number, memory in enumerate(system.gpu.memories):
        place, because = _ring_place(memory, system)
        yield from (Ring(number, nic, place, because) for nic in nics)


def _ring_place(memory: GpuMemory, system: System) -> tuple[str, str]:
    by_file, by_address = WAYS
    if os.environ.get(VARIABLE) == "host":
        return HOST, f"{VARIABLE} is host"
    if not memory.ordered:
        return HOST, "this GPU's kernels do not see what a NIC writes into its memory in order"
    if memory.dmabuf and system.registers_dmabuf:
        return by_file, ""
    if not memory.dmabuf:
        why = "the NVIDIA driver gives no dmabuf (its open kernel modules do, on Linux 5.12 and newer)"
    else:
        why = "libibverbs registers no dmabuf: install rdma-core 34 or newer"
    if system.gpu.peermem:
        return by_address, why
    return HOST, f"{why}, and nvidia-peermem is not loaded (modprobe nvidia-peermem)"


_ON_A_GPU = "mlx5 on a GPU"
_ON_A_GPU_NEEDS = "the same, a GPU, and the right to map the NIC's doorbell page"


@dataclass(frozen=True)
class Readiness:
    """Readiness of one engine: `because` is empty if it can be used on this machine."""

    engine: str
    needs: str
    because: tuple[str, ...]
    verified: str

    @property
    def usable(self) -> bool:
        """True between two processes of this user here, and with an equally equipped peer."""
        return not self.because


@dataclass(frozen=True)
class Diagnosis:
    """Devices, findings, and readiness of engines."""

    devices: tuple[Device, ...]
    findings: tuple[Finding, ...]
    engines: tuple[Readiness, ...]
    rings: tuple[Ring, ...]
    system: System

    def described(self) -> dict[str, object]:
        """Return the diagnosis as JSON data."""
        usable = [asdict(ready) | {"usable": ready.usable} for ready in self.engines]
        return asdict(self) | {"engines": usable}


def diagnosed() -> Diagnosis:
    """Diagnose this machine from this process."""
    system = system_below()
    try:
        listing, unlisted = listed(), None
    except NoPyverbsError as error:
        listing, unlisted = Listed((), {}), str(error)
    return conclusion(system, listing, unlisted)


def conclusion(system: System, listing: Listed, unlisted: str | None) -> Diagnosis:
    """Draw conclusions from facts; `unlisted` says why devices could not be listed, if so."""
    findings = list(of_the_system(system))
    if unlisted is None:
        findings += of_the_list(system, listing.devices, listing.refused)
        findings += of_the_ports(listing.devices)
    else:
        devices = ", ".join(system.kernel_devices)
        kernel_has = f"; the kernel has {devices}, which cannot be examined without it" if devices else ""
        findings.append(Finding(f"{unlisted}{kernel_has}"))
    findings += of_the_gpu(system)
    places = tuple(rings(system, listing.devices))
    return Diagnosis(listing.devices, tuple(findings), tuple(readiness(findings)), places, system)


def readiness(findings: Sequence[Finding]) -> list[Readiness]:
    """Return the readiness of every engine, from the findings and its own check."""
    here = Place.here()
    ready = []
    for name in names()[1:]:
        module = engine(name)
        kinds = {name: module.NEEDS} | ({_ON_A_GPU: _ON_A_GPU_NEEDS} if name == "mlx5" else {})
        for kind, needs in kinds.items():
            because = [finding.sentence for finding in findings if kind in finding.blocks]
            if not because and (why := module.missing(here, here)) is not None:
                because = [why]
            ready.append(Readiness(kind, needs, tuple(because), module.VERIFIED))
    return ready
