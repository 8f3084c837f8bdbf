"""Chaos on order: which workers are killed or stopped during a live replay, and when.

Of several instances `1/attention:0` is a worker of instance 1, and `instance:1` all of them, none replaced.

A specification is WHO[*COUNT][=HOW][@WHEN]: `attention:1@t=3s`, `model:0=stop@tokens=500`, `random@t=2s`, or
`random*50`, spread over the tokens of the trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from laminabench.systems.live.lamina.log import ReplayLog
from laminabench.util.errors import UserError

HOWS = ("kill", "stop")
ROLES = ("model", "attention", "prefill")
INSTANCE = "instance"
RANDOM = "random"
# More than anybody's replay survives in a sensible time.
MOST = 10_000
# Separates these draws from all others of the same seed.
_STREAM = 0x6368616F
_UNITS = {"ms": 0.001, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault to inject: a worker, and when: at a time, or when so many tokens have been made."""

    worker: str  # as the engine calls it; of a spec, `random` is anybody
    how: str = "kill"
    at_s: float | None = None
    at_tokens: int | None = None
    number: int = 0  # in the plan
    spread: int = 0  # so many of them, over all of the trace's tokens, before they are planned


def parse(spec: str) -> Injection:
    """Parse a --chaos; a UserError names the part that is wrong."""

    def wrong(why: str) -> UserError:
        return UserError("chaos-invalid", f"--chaos '{spec}': {why}")

    rest, at, when = spec.partition("@")
    rest, is_, how = rest.partition("=")
    target, times, count = rest.partition("*")
    if is_ and how not in HOWS:
        raise wrong(f"'{how}' is no fault; write =kill or =stop")
    match = re.fullmatch(rf"(\d+/)?({'|'.join(ROLES)}):(\d+)|({INSTANCE}):(\d+)", target)
    if target != RANDOM and not match:
        raise wrong(
            f"'{target}' is no worker; write {', '.join(f'{each}:0' for each in ROLES)} or {RANDOM}; of "
            f"several instances 1/{ROLES[0]}:0, or {INSTANCE}:1"
        )
    fault = Injection(_called(match) if match else target, how or "kill")
    if times:
        if target != RANDOM:
            raise wrong(f"'*{count}' goes with {RANDOM} only")
        if not count.isdecimal() or not 1 <= int(count) <= MOST:
            raise wrong(f"'{count}' is not how many; write a number from 1 to {MOST}")
        if at:
            raise wrong(f"'@{when}' does not go with '*{count}', which spreads them over the whole replay")
        return replace(fault, spread=int(count))
    if not at:
        raise wrong("it does not say when; add @t=3s or @tokens=500")
    name, _, value = when.partition("=")
    if name == "t":
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", value)
        if not match:
            raise wrong(f"'{value}' is no time; write 3s or 500ms")
        return replace(fault, at_s=float(match[1]) * _UNITS[match[2]])
    if name == "tokens":
        if not value.isdecimal():
            raise wrong(f"'{value}' is no number of tokens")
        return replace(fault, at_tokens=int(value))
    raise wrong(f"'@{when}' is no moment; write @t=3s or @tokens=500")


def _called(match: re.Match[str]) -> str:
    """Return the engine's name of the worker."""
    if match[4]:
        return f"{INSTANCE} {int(match[5])}"
    instance = f"{int(match[1][:-1])}/" if match[1] else ""
    return f"{instance}{match[2]} {int(match[3])}"


def plan(
    specs: Iterable[Injection], workers: Sequence[str], tokens: int, seed: int, instances: int = 1
) -> list[Injection]:
    """Plan every fault: its worker and its time; raise a UserError for an unknown worker.

    The same specs, workers, tokens of the trace and seed make the same plan.
    """
    planned: list[Injection] = []
    there = {*workers, *(f"{INSTANCE} {number}" for number in range(instances) if instances > 1)}
    for place, spec in enumerate(specs):
        draws = _draws(seed, place)
        if spec.worker != RANDOM and spec.worker not in there:
            raise UserError(
                "chaos-no-worker",
                f"--chaos: there is no worker {spec.worker.replace(' ', ':')}; the deployment has "
                f"{', '.join(name.replace(' ', ':') for name in workers)}",
            )
        for number in range(spec.spread or 1):
            fault = replace(spec, spread=0)
            if fault.worker == RANDOM:
                fault = replace(fault, worker=workers[min(int(next(draws) * len(workers)), len(workers) - 1)])
            if spec.spread:
                # One in each of as many equal parts.
                fault = replace(fault, at_tokens=int((number + next(draws)) * tokens / spec.spread))
            planned.append(replace(fault, number=len(planned)))
    return planned


def due(planned: Iterable[Injection], log: ReplayLog, elapsed_s: float) -> list[Injection]:
    """Return the faults that are due and have not been injected.

    A struck worker is left alone until the engine has noticed: a dead one cannot be killed.
    """
    done, tokens = {event.number for event in log.strikes}, log.tables.tokens
    left = [
        fault
        for fault in planned
        if fault.number not in done
        and (
            (fault.at_s is not None and fault.at_s <= elapsed_s)
            or (fault.at_tokens is not None and fault.at_tokens <= tokens)
        )
    ]
    down = _down(log) if left else set()
    injections = []
    for fault in left:
        instance, slash, _ = fault.worker.partition("/")
        if fault.worker not in down and not (slash and f"{INSTANCE} {instance}" in down):
            down.add(fault.worker)
            injections.append(fault)
    return injections


def _down(log: ReplayLog) -> set[str]:
    """Return the workers that were struck and have not been replaced since."""
    began_s = _began_s(log)
    # An instance that is lost stays so.
    lost = {
        worker
        for fault in log.faults
        for worker in fault.workers
        if worker.startswith(INSTANCE) and fault.at_s >= began_s
    }
    return lost | unanswered(log)


def unanswered(log: ReplayLog) -> set[str]:
    """Return the struck workers that no fault has recovered yet."""
    began_s = _began_s(log)
    last = {event.workers[0]: event.at_s for event in log.strikes if event.at_s >= began_s}
    return {
        worker
        for worker, at_s in last.items()
        if not any(worker in fault.workers and fault.recovered_s >= at_s for fault in log.faults)
    }


def _began_s(log: ReplayLog) -> float:
    """Return when the current engine began."""
    return log.resumed_s[-1] if log.resumed_s else 0.0


def _draws(seed: int, place: int) -> Iterator[float]:
    bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(_STREAM, place)))
    while True:
        yield (int(bits.random_raw()) >> 11) * 2.0**-53
