"""What each network engine needs, and whether it can run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lamina.fhbn.engines import engine
from lamina.fhbn.nic.findings import Finding
from lamina.fhbn.place import Place

_NEEDS = {
    "shm": "two processes of one user on one machine",
    "verbs": "an RDMA device with an active port, through libibverbs",
    "mlx5": "a ConnectX (provider mlx5), through libibverbs and libmlx5",
    "mlx5 on a GPU": "the same, a GPU, GPUDirect RDMA, and the right to map the NIC's doorbell page",
    "softnic": "two processes of one user on one machine",
    "gloo": "torch, and TCP between the two",
    "nccl": "a CUDA build of torch with NCCL, and a GPU for each process",
}
_ENGINES = {"mlx5 on a GPU": "mlx5"}  # of what has no engine of its own
_VERIFIED = {
    "shm": "yes",
    "verbs": "on soft-RoCE, not on a NIC",
    "mlx5": "not on hardware",
    "mlx5 on a GPU": "not on hardware",
    "softnic": "a test bench",
    "gloo": "yes",
    "nccl": "not on hardware",
}


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

    def described(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "usable": self.usable}


def readiness(findings: Sequence[Finding]) -> list[Readiness]:
    """Of every engine, by its own word and by what was found."""
    return [
        Readiness(name, needs, tuple(_against(name, findings)), _VERIFIED[name])
        for name, needs in _NEEDS.items()
    ]


def _against(name: str, findings: Sequence[Finding]) -> list[str]:
    found = [finding.sentence for finding in findings if name in finding.blocks]
    if found:
        return found
    here = Place.here()
    why = engine(_ENGINES.get(name, name)).missing(here, here)
    return [] if why is None else [why]
