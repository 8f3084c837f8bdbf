"""A modelled deployment as emulated workers of the engine: their number, and how long each waits."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from laminabench.catalog.deployment import Deployment, devices_named
from laminabench.catalog.find_model import modelled
from laminabench.requests.replay import FIELDS, ReplayRequest
from laminabench.sim.spec import Float64, Spec, Timing
from laminabench.systems.live.lamina.setup import LiveSetup
from laminabench.systems.live.local import CPU
from laminabench.systems.modelled.lamina import default_deployment
from laminabench.systems.modelled.prepared import MODEL
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from lamina.emulation import Emulation

# Options of live replays that modelled ones lack.
LIVE_ONLY = ("emulate", "slowdown", "chaos", "metrics_port")


@dataclass(frozen=True, slots=True)
class EmulatedSetup(LiveSetup):
    """The engine's part: workers are processes here, on cores that they share, and devices elsewhere."""

    spec: Spec = field(kw_only=True, repr=False)
    slowdown: float = field(kw_only=True)

    def devices(self) -> dict[str, tuple[str, ...]]:
        """Return the devices of the workers' processes."""
        return {kind: (CPU,) * part.count for kind, part in self.parts.items()}

    @property
    def on_gpus(self) -> bool:
        return False

    def engine_model(self) -> Emulation:
        """Return the spec's times in the form that the engine's workers take."""
        from lamina.emulation import Emulation

        spec, timing = self.spec, timing_of(self.spec)
        rows = len(timing.first_slice)
        # Replicas, or stages.
        places = {"serial": 1, "rotational": max(1, spec.batches - 1)}.get(spec.pipelining, spec.batches)
        ranks = self.workers[0] // places
        elsewhere = spec.pipelining == "rotational" and places > 1

        def ns(seconds: Float64 | float) -> Any:
            stretched = np.asarray(seconds, np.float64) * 1e9 * self.slowdown
            return np.rint(np.broadcast_to(stretched, rows)).astype(np.int64)

        return Emulation(
            layers=spec.layers,
            # Every worker has a share, and messages are no larger than they have to be.
            heads=ranks if spec.pools > 1 else math.lcm(ranks, self.workers[1]),
            ranks=ranks,
            pools=spec.pools,
            first_slice=ns(timing.first_slice),
            mid_slice=ns(timing.mid_slice),
            last_slice=ns(timing.last_slice),
            attention=ns(timing.attention_fixed + timing.attention_rows),
            per_token=timing.attention_per_token * 1e9 * self.slowdown,
            combine=int(ns(timing.combine)[0]),
            q_lead=ns(timing.q_lead),
            q_transfer=ns(timing.q_transfer),
            kv_transfer=ns(timing.kv_transfer),
            out_transfer=ns(timing.out_transfer),
            migration=ns(timing.migration if elsewhere else 0.0),
        )


SETUP = EmulatedSetup


def timing_of(spec: Spec) -> Timing:
    """Return the spec's tables of times: only boards have none."""
    assert isinstance(spec.timing, Timing)
    return spec.timing


def modelled_twin(request: ReplayRequest) -> ReplayRequest:
    """Return the modelled replay on the devices that are emulated."""
    others = {name: FIELDS[name].default for name in LIVE_ONLY} | {"timeline": None, "plot": None}
    return msgspec.structs.replace(request, backend="modelled", deployment=_deployment(request), **others)


def _deployment(request: ReplayRequest) -> str:
    """Return the deployment of the emulated devices; by default as many as the paper has."""
    named = [name.strip().lower() for name in (request.emulate or "").split(",")]
    if not 1 <= len(named) <= 2 or not all(named):
        raise UserError(
            "emulate-devices",
            f"--emulate {request.emulate}: name the model workers' device and the attention workers', as "
            "h100,h20",
        )
    if request.deployment is None:
        usual = default_deployment(modelled(request.model or MODEL)).split("+")
        return "+".join(
            re.sub(r"x[^:]+", f"x{name}", part)
            for part, name in zip(usual, (named[0], named[-1]), strict=True)
        )
    if (there := devices_named(request.deployment)) != set(named):
        raise UserError(
            "emulate-deployment",
            f"--deployment {request.deployment} is of {', '.join(sorted(there)) or 'no devices'}, and "
            f"--emulate of {', '.join(named)}: workers are all emulated, so name the same devices in both",
        )
    return request.deployment


def require_emulable(deployment: Deployment, spec: Spec, instances: int) -> None:
    """Raise a UserError for what the virtual cluster can do and waiting workers cannot."""
    layout, timing = deployment.model.layout, timing_of(spec)
    for wrong, what in (
        (instances > 1, "several instances"),
        (
            layout is not None and layout.dp > 1,
            "a layout with data parallelism, whose groups have batches of their own,",
        ),
        (timing.window is not None, "a model whose layers look at a window"),
        (timing.measured is not None, "attention that a cost set has as it was measured"),
    ):
        if wrong:
            raise UserError(
                "emulate-not-possible",
                f"--emulate {deployment}: {what} cannot be emulated; --backend modelled has it",
            )
