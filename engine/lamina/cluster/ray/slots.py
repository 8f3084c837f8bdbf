"""Slots for workers in a Ray cluster: bundles of placement groups, and their actors."""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import socket
import threading
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lamina import host_memory
from lamina.cluster import worker
from lamina.cluster.messages import ModelSource, WorkerConfig
from lamina.cluster.models import Models
from lamina.operators import Attended
from lamina.pipeline.options import EngineError


@dataclass(frozen=True)
class Spot:
    """The node of an actor and its resources."""

    version: str  # of the package on its node
    host: str
    node: str  # as Ray calls it
    pid: int
    kernel: str  # actors with the same one share cores and memory
    cores: tuple[int, ...]  # that it may use
    free_bytes: int
    loaded: bool  # whether it has the model's weights already


class RayWorker:
    """The actor of a worker; Ray calls one method at a time, in the process's main thread."""

    def __init__(self) -> None:
        self._models = Models()
        # Before a worker has taken one of them.
        self._cores = tuple(sorted(os.sched_getaffinity(0)))

    def look(self, model: ModelSource) -> Spot:
        import ray

        return Spot(
            version=installed_version(),
            host=str(ray.util.get_node_ip_address()),  # type: ignore[no-untyped-call]
            node=ray.get_runtime_context().get_node_id(),
            pid=os.getpid(),
            kernel=Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
            cores=self._cores,
            free_bytes=host_memory.free_bytes(),
            loaded=self._has(model),
        )

    def prepare(self, model: ModelSource, kind: str) -> str | None:
        """Load a worker's part of the model; return why that failed, or None."""
        try:
            if has_weights(kind):
                self._models.weights(model)
        except (ValueError, OSError) as error:
            return str(error) or type(error).__name__
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        gc.freeze()  # torch and the model stay: collecting them takes most of a second
        return None

    def run(self, config: WorkerConfig, model: ModelSource, attended: Attended) -> tuple[int, str]:
        """Run a worker; return its exit status and message.

        What an attention worker has of the model is sent: it loads nothing of it, nor transformers.
        """
        try:
            if not has_weights(config.kind):
                return worker.run([config], attended, None, []), ""
            conversion, weights = self._models.conversion(model), self._models.weights(model)
            return worker.run([config], attended, conversion, weights), ""
        except Exception:
            return 1, traceback.format_exc().strip()
        finally:
            gc.collect()  # an actor that waits for its next worker has no arena

    def _has(self, model: ModelSource) -> bool:
        try:
            return self._models.has_weights(model)
        except OSError:  # prepare() reports it
            return False


def has_weights(kind: str) -> bool:
    """Return whether a kind of worker needs weights; attention workers need only the model's shape."""
    return kind != "attention"


def installed_version() -> str:
    return version("laminabench")


LOOPBACK = "127.0.0.1"
_REACH_S = 3.0
_START = "start one with `ray start --head` (or `ray start --address` on more nodes) and give its host:port"


class Session:
    """Ray's connection, shared by all machines of this process."""

    def __init__(self) -> None:
        self._machines = 0
        self._joined_here = False

    def join(self, address: str) -> None:
        """Connect once per machine; an already initialised Ray is used unchanged."""
        ray = installed()
        if not ray.is_initialized():
            _require_address(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, RuntimeError, ValueError, AssertionError) as error:
                why = str(error).strip().split("\n", 1)[0]
                raise EngineError(
                    "ray-join-failed", f"cannot join the Ray cluster at '{address}': {why}; {_START}"
                ) from error
            self._joined_here = True
        self._machines += 1

    def leave(self) -> None:
        """Disconnect once per machine that has joined."""
        self._machines -= 1
        if self._machines == 0 and self._joined_here:
            self._joined_here = False
            installed().shutdown()


SESSION = Session()


def installed() -> Any:
    """Import and return Ray, or raise EngineError."""
    try:
        import ray
    except ImportError as error:
        raise EngineError(
            "ray-not-installed",
            "Ray is not installed, or not whole: pip install 'laminabench[engine]' here and on every node",
        ) from error
    return ray


def own_host() -> str:
    """Return the address to listen on for workers: the node's if there are other nodes, else loopback."""
    hosts = {node["NodeManagerAddress"] for node in alive_nodes()}
    own: str = installed().util.get_node_ip_address()
    return own if hosts - {own} else LOOPBACK


def alive_nodes() -> list[dict[str, Any]]:
    return [node for node in installed().nodes() if node["Alive"]]


def _require_address(address: str) -> None:
    """Raise EngineError unless a cluster listens; Ray would start its own or retry for minutes."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", address)
    if address in ("", "local"):
        raise EngineError("ray-no-cluster", f"there is no Ray cluster to join: {_START}")
    if "://" in address:
        raise EngineError(
            "ray-client-address",
            f"'{address}' is for Ray's client, and the front end has to be on a node of the cluster: give "
            "host:port of its head",
        )
    if address == "auto":  # Ray knows where it has started one
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise EngineError(
            "ray-address-invalid", f"'{address}' is no address of a Ray cluster: give host:port, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        why = error.strerror or "no answer in time"
        raise EngineError(
            "ray-no-cluster", f"there is no Ray cluster at {address} ({why}): {_START}"
        ) from error


# Custom resource for each kind of worker; a CPU if no node has it.
RESOURCES = {"model": "compute_gpu", "prefill": "compute_gpu", "attention": "memory_gpu"}
CPU = "CPU"
# Starting a process, torch and the model takes minutes on a busy node.
START_S = 300.0
KILLED = -int(signal.SIGKILL)
# Resources released by others become free a moment later.
_ROOM_S = 10.0


@dataclass(eq=False)
class Slot:
    """A bundle and its actor."""

    group: Any
    index: int
    resource: str
    actor: Any = None
    busy: bool = False


@dataclass
class Slots:
    """All bundles that one machine has reserved."""

    slots: list[Slot] = field(default_factory=list)
    groups: list[Any] = field(default_factory=list)
    taking: threading.Lock = field(default_factory=threading.Lock)

    def take(self, kinds: Sequence[str]) -> list[Slot]:
        """Return a slot for each worker: first those with an actor, then reserved ones, then new ones."""
        with self.taking:
            resources = [self.resource_of(kind) for kind in kinds]
            chosen = [self._idle(resource) for resource in resources]
            lacking = [name for name, slot in zip(resources, chosen, strict=True) if slot is None]
            fresh: list[Slot] = []
            try:
                if lacking:
                    # Fails immediately if waiting would not help.
                    require_room([*(slot.resource for slot in self.slots), *lacking])
                    fresh += self._reserve(lacking)
                taken = [*filter(None, chosen), *fresh]
                # Ray reschedules bundles of lost nodes.
                if not all(group.wait(_ROOM_S) for group in {slot.group for slot in taken}):
                    raise _no_room(resources)
            except BaseException:
                for slot in filter(None, chosen):
                    slot.busy = False
                self._forget(fresh)
                raise
            rest = iter(fresh)
            return [slot or next(rest) for slot in chosen]

    def resource_of(self, kind: str) -> str:
        """Return the resource of a kind of worker; it does not change when the last node with it is lost."""
        wanted = RESOURCES[kind]
        offered = any(wanted in node["Resources"] for node in alive_nodes())
        return wanted if offered or any(slot.resource == wanted for slot in self.slots) else CPU

    def _idle(self, resource: str) -> Slot | None:
        free = [slot for slot in self.slots if not slot.busy and slot.resource == resource]
        if not free:
            return None
        slot = max(free, key=lambda one: one.actor is not None)
        slot.busy = True
        return slot

    def _reserve(self, resources: list[str]) -> list[Slot]:
        # Ranks of a replica on devices should be close to each other; cores may be anywhere.
        strategy = "SPREAD" if CPU in resources else "PACK"
        bundles = [{name: 1} for name in resources]
        group = installed().util.placement_group(bundles, strategy=strategy)
        self.groups.append(group)
        fresh = [Slot(group, index, name, busy=True) for index, name in enumerate(resources)]
        self.slots += fresh
        return fresh

    def _forget(self, fresh: list[Slot]) -> None:
        for group in {slot.group for slot in fresh}:
            self.groups.remove(group)
            installed().util.remove_placement_group(group)
        self.slots[:] = [slot for slot in self.slots if slot not in fresh]

    def release(self) -> None:
        ray = installed()
        for slot in self.slots:
            if slot.actor is not None:
                ray.kill(slot.actor, no_restart=True)
        for group in self.groups:
            ray.util.remove_placement_group(group)
        self.slots.clear()
        self.groups.clear()


def require_room(resources: Sequence[str]) -> None:
    """Raise EngineError if the cluster lacks resources even if nothing else used it."""
    wanted, nodes = Counter(resources), alive_nodes()
    # A worker needs one node: fractions on two nodes do not count.
    there = {name: sum(math.floor(node["Resources"].get(name, 0)) for node in nodes) for name in wanted}
    if any(count > there[name] for name, count in wanted.items()):
        known = "nodes offer neither compute_gpu nor memory_gpu: " if set(wanted) == {CPU} else ""
        raise EngineError(
            "ray-cluster-too-small",
            f"the Ray cluster is too small: wanted are {_counted(wanted)}, there are {_counted(there)} on "
            f"{len(nodes)} nodes: {known}take fewer workers, or add nodes",
        )


def _no_room(resources: list[str]) -> EngineError:
    free = installed().available_resources()
    left = {name: free.get(name, 0) for name in resources}
    return EngineError(
        "ray-no-room",
        f"the Ray cluster has no room now: wanted are {_counted(Counter(resources))}, free are "
        f"{_counted(left)}: end what else runs there, or add nodes",
    )


def _counted(resources: Any) -> str:
    return " and ".join(f"{count:g} {name}" for name, count in sorted(dict(resources).items()))


class ActorLostError(EngineError):
    """An actor has ended or did not start."""


def fill(slots: Sequence[Slot]) -> None:
    ray = installed()
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    for slot in slots:
        if slot.actor is None:
            bundle = PlacementGroupSchedulingStrategy(slot.group, placement_group_bundle_index=slot.index)
            cpus = 1 if slot.resource == CPU else 0
            custom = {} if cpus else {slot.resource: 1}
            actor = ray.remote(RayWorker)
            slot.actor = actor.options(num_cpus=cpus, resources=custom, scheduling_strategy=bundle).remote()


def empty(slot: Slot) -> None:
    """End a slot's actor."""
    if slot.actor is not None:
        installed().kill(slot.actor, no_restart=True)
    slot.actor, slot.busy = None, False


def answers(names: Sequence[str], calls: Sequence[Any]) -> list[Any]:
    """Return all results; raise EngineError for the first worker that cannot answer."""
    ray = installed()
    _, late = ray.wait(calls, num_returns=len(calls), timeout=START_S)
    if late:
        silent = [name for name, one in zip(names, calls, strict=True) if one in late]
        raise EngineError(
            "ray-actor-late",
            f"{', '.join(silent)} did not start in {START_S:g} s: look whether the nodes have room "
            "(`ray status`) and answer",
        )
    answers = []
    for name, one in zip(names, calls, strict=True):
        try:
            answers.append(ray.get(one))
        except ray.exceptions.RayError as error:
            why = f"{name} did not start: {_reason(error)}"
            if "No module named" in why:
                raise EngineError(
                    "ray-package-missing", f"{why}: install the same laminabench[engine] on every node"
                ) from error
            if isinstance(error, ray.exceptions.RayActorError):
                raise ActorLostError("ray-actor-lost", why) from error
            raise EngineError("worker-start-failed", why) from error
    return answers


def outcome(run: Any) -> tuple[int, str]:
    ray = installed()
    try:
        status, text = ray.get(run)
        return int(status), str(text)
    except ray.exceptions.RayActorError as error:
        return KILLED, _reason(error)
    except ray.exceptions.RayError as error:
        return 1, _reason(error)


def _reason(error: BaseException) -> str:
    """Return the last line of Ray's message that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
