"""Everything there is to say of RDMA on this machine, gathered once."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.fhbn.nic import findings as rules
from lamina.fhbn.nic.devices import Device, Listed, listed
from lamina.fhbn.nic.findings import Finding
from lamina.fhbn.nic.machine import System, system_below
from lamina.fhbn.nic.needs import Readiness, readiness
from lamina.fhbn.nic.pyverbs_package import NoPyverbsError


@dataclass(frozen=True)
class Diagnosis:
    """The devices, what is missing, and what can be used."""

    devices: tuple[Device, ...]
    findings: tuple[Finding, ...]
    engines: tuple[Readiness, ...]
    system: System

    def described(self) -> dict[str, object]:
        """For JSON."""
        return {
            "devices": [device.described() for device in self.devices],
            "findings": [
                {"sentence": finding.sentence, "blocks": list(finding.blocks)} for finding in self.findings
            ],
            "engines": [ready.described() for ready in self.engines],
            "system": self.system.described(),
        }


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
        names = ", ".join(system.kernel_devices)
        beside = f"; the kernel has {names}, of which nothing more is told without it" if names else ""
        findings.append(Finding(f"{unlisted}{beside}"))
    findings += rules.of_the_gpu(system.gpu, registers_dmabuf=system.registers_dmabuf)
    return Diagnosis(listing.devices, tuple(findings), tuple(readiness(findings)), system)
