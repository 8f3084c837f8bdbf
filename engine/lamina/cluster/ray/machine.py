"""A Ray cluster as the front end's machine: workers are actors."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lamina.cluster.layout import Layout
from lamina.cluster.messages import ModelSource, WorkerConfig
from lamina.cluster.models import Models
from lamina.cluster.ray.slots import (
    KILLED,
    LOOPBACK,
    SESSION,
    ActorLostError,
    Slot,
    Slots,
    Spot,
    answers,
    empty,
    fill,
    has_weights,
    installed,
    installed_version,
    outcome,
    own_host,
    require_room,
)
from lamina.pipeline.options import EngineError, ModelFacts

END_S = 5.0
# A worker whose engine was closed has disconnected and is about to end.
_GOODBYE_S = 0.2
_MOST_TEXTS = 20


@dataclass
class _Started:
    """A running worker and its slot."""

    config: WorkerConfig
    slot: Slot
    spot: Spot
    run: Any
    status: int | None = None


class RayMachine:
    """A Ray cluster, in which workers are started, each in a placement group's bundle.

    As a Machine does for this machine; a worker's handle is a number of this object's own.
    Actors whose worker's engine was closed stay, with torch and the model's weights, for the next engine, and
    so do their bundles: close() gives them back, as the end of this process does, however that comes.
    """

    def __init__(self, address: str = "auto") -> None:
        """`address` is that of a running cluster as ray.init takes it: auto, or host:port of its head."""
        self._models = Models()
        self._slots = Slots()
        self._started: dict[int, _Started] = {}
        self._cores: Counter[tuple[str, int]] = Counter()
        self._texts: list[str] = []
        self._closed = False
        self._noting = threading.Lock()
        SESSION.join(address)
        self._finish = weakref.finalize(self, _finish, self._slots)

    @property
    def host(self) -> str:
        """The address on which the front end listens for workers."""
        self._require_open()
        return own_host()

    def cores(self, layout: Layout) -> list[int]:
        """Return distinct numbers: nodes choose cores later. An EngineError if there are too few."""
        self._require_open()
        kinds = [name.split()[0] for name in layout.names]
        require_room([self._slots.resource_of(kind) for kind in kinds])
        return list(range(layout.workers))

    def free_bytes(self) -> int:
        """Return no limit: each node is checked when workers start there."""
        return sys.maxsize

    def free_on(self, devices: Collection[str]) -> dict[str, int]:
        """Return nothing: workers in a cluster are on CPUs."""
        if devices:
            raise EngineError(
                "ray-gpu", f"workers on Ray run on CPUs, not on {min(devices)}: leave out what they are on"
            )
        return {}

    def convert(self, model: ModelSource) -> ModelFacts:
        self._require_open()
        return ModelFacts.of(self._models.conversion(model))

    def start(self, model: ModelSource, configs: Sequence[WorkerConfig]) -> list[int]:
        """Start workers and return their handles; a replacement uses a free bundle.

        Nodes load the parts of the model that they need.
        """
        self._require_open()
        try:
            return self._start(model, configs)
        except ActorLostError:
            # The node was lost and Ray did not know; now it chooses another one.
            return self._start(model, configs)

    def _start(self, model: ModelSource, configs: Sequence[WorkerConfig]) -> list[int]:
        slots = self._slots.take([config.kind for config in configs])
        try:
            fill(slots)
            names = [config.name for config in configs]
            spots: list[Spot] = answers(names, [slot.actor.look.remote(model) for slot in slots])
            require_version(names, spots)
            require_memory(self.convert(model), configs, spots)
            pending = [
                slot.actor.prepare.remote(model, config.kind)
                for slot, config in zip(slots, configs, strict=True)
            ]
            for name, spot, refused in zip(names, spots, answers(names, pending), strict=True):
                if refused:
                    raise EngineError(
                        "worker-start-failed", f"{name} did not start on {spot.host}: {refused}"
                    )
        except BaseException:
            for slot in slots:
                empty(slot)
            raise
        placed = placed_on_nodes(configs, spots, self._cores, spans=own_host() != LOOPBACK)
        return [self._run(model, *item) for item in zip(placed, slots, spots, strict=True)]

    def _run(self, model: ModelSource, config: WorkerConfig, slot: Slot, spot: Spot) -> int:
        handle = len(self._started) + 1
        run = slot.actor.run.remote(config, model, self._models.attended(model))
        self._started[handle] = _Started(config, slot, spot, run)
        return handle

    def kill(self, handles: Sequence[int]) -> None:
        if self._closed:
            return
        self._settle(handles, _GOODBYE_S)
        for handle in handles:
            self.inject_fault(handle, "kill")
        self._settle(handles, END_S)
        for handle in handles:
            if self._started[handle].status is None:
                # Its node does not answer: the worker can have no effect any more.
                self._end(self._started[handle], KILLED, "Ray has no news of its end")

    def runs(self, handle: int) -> bool:  # noqa: ARG002
        """Return True: whether a process on another machine runs is unknown, so callers yield."""
        return True

    def inject_fault(self, handle: int, how: str) -> None:
        """Inject a fault into a worker: "kill" it. Ray cannot "stop" one."""
        if how != "kill":
            raise EngineError(
                "ray-harm-unknown", f"workers on Ray can only be killed: {how} is not available"
            )
        started = self._started[handle]
        if started.status is None:
            installed().kill(started.slot.actor, no_restart=True)

    def ends(self, handles: Sequence[int]) -> dict[int, int]:
        """Return the exit status of ended workers, as subprocess: negative for a signal."""
        self._require_open()
        self._settle(handles, 0)
        result = {handle: self._started[handle].status for handle in handles}
        return {handle: status for handle, status in result.items() if status is not None}

    def where(self, handles: Sequence[int]) -> list[Spot]:
        return [self._started[handle].spot for handle in handles]

    def errors(self) -> str:
        """Return the output of failed workers, the last one's at the end."""
        return "\n".join(self._texts)

    def _settle(self, handles: Sequence[int], wait_s: float) -> None:
        runs = {self._started[one].run: self._started[one] for one in handles}
        pending = [run for run, started in runs.items() if started.status is None]
        if not pending:
            return
        ready, _ = installed().wait(pending, num_returns=len(pending), timeout=wait_s)
        for run in ready:
            self._end(runs[run], *outcome(run))

    def _end(self, started: _Started, status: int, text: str) -> None:
        with self._noting:
            if started.status is not None:  # another engine's thread was faster
                return
            started.status = status
        self._cores[started.spot.kernel, started.config.core] -= 1
        if text:
            self._texts = [*self._texts, text][-_MOST_TEXTS:]
        if status == 0:
            started.slot.busy = False  # its actor waits for the next worker
        else:
            empty(started.slot)

    def _require_open(self) -> None:
        if self._closed:
            raise EngineError("machine-closed", "the machine was closed: make a new one")

    def close(self) -> None:
        if self._closed:
            return
        handles = list(self._started)
        with contextlib.suppress(EngineError):
            self.kill(handles)
        self._closed = True
        self._finish()

    def __enter__(self) -> RayMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _finish(slots: Slots) -> None:
    """Release slots without a reference to the machine; Ray may have ended before."""
    if installed().is_initialized():
        try:
            slots.release()
        finally:
            SESSION.leave()


def require_version(names: Sequence[str], spots: Sequence[Spot]) -> None:
    own = installed_version()
    for name, spot in zip(names, spots, strict=True):
        if spot.version != own:
            raise EngineError(
                "ray-version-differs",
                f"{name} did not start: {spot.host} has laminabench {spot.version} and the front end {own}: "
                "install the same one on every node",
            )


def require_memory(facts: ModelFacts, configs: Sequence[WorkerConfig], spots: Sequence[Spot]) -> None:
    """Raise EngineError if workers do not fit in their nodes' memory, before they are loaded."""
    needs: defaultdict[str, float] = defaultdict(float)
    names: defaultdict[str, list[str]] = defaultdict(list)
    for config, spot in zip(configs, spots, strict=True):
        names[spot.kernel].append(config.name)
        if not has_weights(config.kind):
            share = config.partition.pools * config.partition.copies / config.partition.workers
            shape = replace(facts.kv_shape, kv_dtype=config.kv_dtype)
            arena = shape.nbytes(config.arena_tokens, config.most_rows, config.overcommit)
            needs[spot.kernel] += arena * share + facts.absorbing_bytes
            continue
        if config.kind == "model":  # all sequences, each at one place or a part at every stage
            needs[spot.kernel] += facts.state_bytes * config.most_rows / config.layout.places
        if not spot.loaded:  # as they are loaded, and as in slices: packed, or a rank's share
            needs[spot.kernel] += facts.weight_bytes * (1 + 1 / config.partition.ranks)
    for spot in spots:
        if needs[spot.kernel] > spot.free_bytes:
            raise EngineError(
                "engine-out-of-memory",
                f"{', '.join(names[spot.kernel])} need {needs[spot.kernel] / 1e9:,.1f} GB on {spot.host}, "
                f"and {spot.free_bytes / 1e9:,.1f} GB are free there: take a smaller model, fewer KV tokens, "
                "or more nodes",
            )


def placed_on_nodes(
    configs: Sequence[WorkerConfig], spots: Sequence[Spot], cores: Counter[tuple[str, int]], *, spans: bool
) -> list[WorkerConfig]:
    """Return configs with cores of their nodes, counted in `cores`, and with hosts if there are several."""
    placed, shared = [], False
    for config, spot in zip(configs, spots, strict=True):
        core = min(spot.cores, key=lambda one: (cores[spot.kernel, one], one))
        cores[spot.kernel, core] += 1
        shared |= cores[spot.kernel, core] > 1
        placed.append(replace(config, core=core, host=spot.host) if spans else replace(config, core=core))
    # Workers that share a core must not spin.
    return [replace(config, spin_s=0.0) for config in placed] if shared else placed
