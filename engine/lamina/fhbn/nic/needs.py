"""What each network engine needs, and whether it can run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lamina.fhbn.engines import engine, names
from lamina.fhbn.nic.findings import Finding
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

    def described(self) -> dict[str, object]:
        """For JSON."""
        return {**asdict(self), "usable": self.usable}


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
