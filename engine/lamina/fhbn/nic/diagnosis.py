"""Everything there is to say of RDMA on this machine, gathered once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lamina.fhbn.engines import engine, names
from lamina.fhbn.nic import findings as rules
from lamina.fhbn.nic.devices import Device, Listed, listed
from lamina.fhbn.nic.findings import Finding
from lamina.fhbn.nic.machine import System, system_below
from lamina.fhbn.nic.pyverbs_package import NoPyverbsError
from lamina.fhbn.place import Place

_ON_A_GPU = "mlx5 on a GPU"
_ON_A_GPU_NEEDS = "the same, a GPU, GPUDirect RDMA, and the right to map the NIC's doorbell page"


@dataclass(frozen=True)
class Readiness:
    """One engine: `because` is empty where it can be used here."""

    engine: str
    needs: str
    because: tuple[str, ...]
    verified: str

    @property
    def usable(self) -> bool:
        """Between two processes of this user on this machine, and with a peer that has the same."""
        return not self.because


@dataclass(frozen=True)
class Diagnosis:
    """The devices, what is missing, and what can be used."""

    devices: tuple[Device, ...]
    findings: tuple[Finding, ...]
    engines: tuple[Readiness, ...]
    system: System

    def described(self) -> dict[str, object]:
        """For JSON."""
        usable = [asdict(ready) | {"usable": ready.usable} for ready in self.engines]
        return asdict(self) | {"engines": usable}


def diagnosed() -> Diagnosis:
    """Of this machine, as this process sees it."""
    system = system_below()
    try:
        listing, unlisted = listed(), None
    except NoPyverbsError as error:
        listing, unlisted = Listed((), {}), str(error)
    return conclusion(system, listing, unlisted)


def conclusion(system: System, listing: Listed, unlisted: str | None) -> Diagnosis:
    """What follows from these facts. `unlisted` is why devices could not even be listed."""
    findings = list(rules.of_the_system(system))
    if unlisted is None:
        findings += rules.of_the_list(system, listing.devices, listing.refused)
        findings += rules.of_the_ports(listing.devices)
    else:
        seen = ", ".join(system.kernel_devices)
        beside = f"; the kernel has {seen}, of which nothing more is told without it" if seen else ""
        findings.append(Finding(f"{unlisted}{beside}"))
    findings += rules.of_the_gpu(system.gpu, registers_dmabuf=system.registers_dmabuf)
    return Diagnosis(listing.devices, tuple(findings), tuple(readiness(findings)), system)


def readiness(findings: Sequence[Finding]) -> list[Readiness]:
    """Of every engine, by its own word and by what was found."""
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
