"""Actors for workers: put where there is room, asked, and understood when they end."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from lamina.cluster.ray.session import installed
from lamina.cluster.ray.slots import CPU, Slot
from lamina.cluster.ray.worker import RayWorker
from lamina.pipeline.options import EngineError

# A process, torch, and the model: on a busy node some minutes.
START_S = 300.0
KILLED = -int(signal.SIGKILL)


class ActorLostError(EngineError):
    """An actor has ended, or never begun."""


def fill(slots: Sequence[Slot]) -> None:
    """Put an actor where there is none."""
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
    """End its actor: it is of no use any more."""
    if slot.actor is not None:
        installed().kill(slot.actor, no_restart=True)
    slot.actor, slot.busy = None, False


def answers(names: Sequence[str], asked: Sequence[Any]) -> list[Any]:
    """All of them; an EngineError naming the first worker that cannot answer."""
    ray = installed()
    _, late = ray.wait(asked, num_returns=len(asked), timeout=START_S)
    if late:
        silent = [name for name, one in zip(names, asked, strict=True) if one in late]
        raise EngineError(
            "ray-actor-late",
            f"{', '.join(silent)} did not start in {START_S:g} s: look whether the nodes have room "
            "(`ray status`) and answer",
        )
    answers = []
    for name, one in zip(names, asked, strict=True):
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
    """How a worker has ended, and why."""
    ray = installed()
    try:
        status, text = ray.get(run)
        return int(status), str(text)
    except ray.exceptions.RayActorError as error:
        return KILLED, _reason(error)
    except ray.exceptions.RayError as error:
        return 1, _reason(error)


def _reason(error: BaseException) -> str:
    """The last line of Ray's that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
