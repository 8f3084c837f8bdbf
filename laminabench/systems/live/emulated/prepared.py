"""An emulated replay: a live replay on the engine, with the facts of the virtual cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec
import numpy as np

from laminabench.requests.replay import ReplayRequest
from laminabench.runs.manifest import Backend
from laminabench.systems.base import Past, Replayed
from laminabench.systems.live.emulated.setup import EmulatedSetup, modelled_twin, require_emulable
from laminabench.systems.live.lamina.checks import check
from laminabench.systems.live.lamina.faults import parse, plan
from laminabench.systems.live.lamina.prepared import PreparedEngine
from laminabench.systems.live.lamina.records import OwnTimes, Recorded
from laminabench.systems.live.lamina.setup import LiveSetup
from laminabench.systems.modelled.includes import includes_of
from laminabench.systems.modelled.lamina import SYSTEM as MODELLED
from laminabench.systems.modelled.prepared import PreparedModel
from laminabench.systems.modelled.prepared import prepare as prepare_modelled
from laminabench.systems.modelled.setup import Modelled
from laminabench.traces.table import Trace
from laminabench.util.json import Json, JsonObject
from laminabench.util.progress import Listener

# What is modelled and has its own time here, or none: the host's is this machine's.
UNUSED = ("host", "recompute", "paging")
# The share of late iterations above which the times count as the host's.
MOST_LATE = 0.05
# What more a host should have than the slowest iterations of this replay needed.
ROOM = 1.25


@dataclass(frozen=True, slots=True)
class PreparedEmulated(PreparedEngine):
    """An emulated replay that is ready to start."""

    twin: PreparedModel = field(kw_only=True)
    built: Modelled = field(kw_only=True)
    backend: ClassVar[Backend] = "emulated"

    @property
    def slowdown(self) -> float:
        return self.request.slowdown or 1.0

    @property
    def process(self) -> str:
        return f"lamina, emulated on {self.deployment}"

    def replay(self, trace: Trace, past: Past, listener: Listener) -> Replayed:
        """Replay on live workers, and report the emulated devices."""
        replayed = PreparedEngine.replay(self, trace, past, listener)
        own, costs = replayed.facts, self.twin.costs
        if why := _behind(own["pace"], replayed):
            listener.note(why)
        return replace(
            replayed,
            facts={**own, **self.built.facts, "channels": own["network"], "host_async": None},
            coefficients=[row for row in self.built.coefficients if row["term"] not in UNUSED],
            costs_set=costs.name,
            includes=includes_of([(self.request.system, self.twin.setup)]),
        )

    def kv_tokens(self, setup: LiveSetup, trace: Trace) -> int:
        """Return what is on the devices, of which nothing is here."""
        del setup, trace
        return self.built.spec.tokens_per_pool * self.built.spec.pools

    def final_facts(self, records: Recorded | OwnTimes) -> JsonObject:
        """Return whether the host kept the pace of the devices."""
        assert isinstance(records, Recorded)
        waited_ms, late_ms = records.records.ends_ns.T / 1e6
        pace: dict[str, Json] = {
            "slowdown": self.slowdown,
            "late_share": None,
            "lateness_ms": None,
            "kept": None,
        }
        if len(late_ms):  # else it went with workers that were lost
            late = float(np.mean(waited_ms < 0))
            points = {f"p{point}": float(np.percentile(late_ms, point)) for point in (50, 99)}
            pace |= {"late_share": late, "lateness_ms": points, "kept": late <= MOST_LATE}
        return {"emulated": sorted({part.device.name for part in self.setup.parts.values()}), "pace": pace}


def _behind(pace: Any, replayed: Replayed) -> str:
    """Return advice if the host was too slow for the emulated devices, or an empty text."""
    if pace["kept"] is not False:
        return ""
    took_ms = float(np.mean(replayed.outcome.iterations["duration_s"])) * 1e3
    needed = pace["slowdown"] * ROOM / max(1 - pace["lateness_ms"]["p50"] / took_ms, 0.02)
    return (
        f"the host was later than the emulated devices in {pace['late_share']:.0%} of the iterations: these "
        f"times are the host's and not the devices'; --slowdown {math.ceil(needed)} gives it room"
    )


def prepare(request: ReplayRequest, listener: Listener) -> PreparedEmulated:
    """Settle the request; raise a UserError for what cannot be emulated."""
    twin = prepare_modelled(modelled_twin(request), MODELLED, listener)
    built = MODELLED.build(twin.setup)
    spec, deployment = built.spec, twin.setup.deployment
    require_emulable(deployment, spec, len(twin.instances))
    settled = {name: getattr(twin.request, name) for name in ("model", "deployment", "network", "costs")}
    request = msgspec.structs.replace(request, **settled)
    setup = EmulatedSetup(
        model=twin.setup.model,
        source=str(request.model),
        deployment=deployment,
        batches=spec.batches,
        min_batch=spec.min_batch,
        pipelining=spec.pipelining if twin.setup.pipeline_parallel == 1 else None,
        pipeline_parallel=twin.setup.pipeline_parallel,
        partition=built.facts["attention_partition"],
        overlap=built.facts["overlap"],
        max_num_seqs=spec.max_requests,
        kv_tokens=spec.tokens_per_pool * spec.pools,
        oversubscribe=True,
        spec=spec,
        slowdown=request.slowdown or 1.0,
    )
    faults = [parse(each) for each in request.chaos]
    check(setup)
    plan(faults, setup.names(), 0, 0)
    return PreparedEmulated(request, setup, faults, twin=twin, built=built)
