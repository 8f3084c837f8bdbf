"""What binds a candidate: replays of it with one resource at a time a tenth better."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from laminabench.catalog.boards import Board, BoardMemory
from laminabench.catalog.deployment import Workers
from laminabench.catalog.hardware import Device
from laminabench.plan.measure import Point, measure
from laminabench.plan.question import Candidate, Question
from laminabench.sim.spec import BoardTiming, Spec, Timing
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.registry import system

# A tenth more of what one has, or a tenth more speed.
BETTER = 1.1

AnyTiming = TypeVar("AnyTiming", Timing, BoardTiming)


@dataclass(frozen=True, slots=True)
class Effect:
    """What a tenth more of one resource alone would do."""

    resource: str
    throughput_gain: float  # a share: 0.04 is 4 % more tokens a second
    tbt_p99_gain: float  # how much shorter: 0.04 is 4 % less

    def row(self) -> dict[str, object]:
        """For --json. Elasticity: percent gained for each percent more of the resource."""
        return {
            "resource": self.resource,
            "throughput_gain": self.throughput_gain,
            "elasticity": self.throughput_gain / (BETTER - 1),
            "tbt_p99_gain": self.tbt_p99_gain,
        }


def effects(question: Question, point: Point) -> list[Effect]:
    """Of every resource that the candidate has, from the one that would help most."""
    found = [
        _effect(resource, point, measure(question, question.trace, point.candidate, better))
        for resource, better in _better(question, point.candidate)
    ]
    # Tokens a second are given by the arrivals in an open replay: there it is time that can be gained.
    open_ = question.mode == "open"
    return sorted(found, key=lambda each: -(each.tbt_p99_gain if open_ else each.throughput_gain))


def _effect(resource: str, point: Point, better: Point) -> Effect:
    rate = better.tokens_per_s / point.tokens_per_s - 1
    return Effect(resource, rate, 1 - better.tbt_p99_ms / point.tbt_p99_ms)


def _better(question: Question, candidate: Candidate) -> Iterator[tuple[str, Spec]]:
    """The cluster with each resource better in turn; nothing else changes, not even the devices' names."""
    setup, build = question.setup(candidate), system(candidate.system).build
    spec = build(setup).spec
    yield "requests at once", build(replace(setup, max_num_seqs=int(spec.max_requests * BETTER))).spec
    if isinstance(spec.timing, BoardTiming):
        yield from _better_boards(spec, spec.timing)
        yield "host time", replace(spec, timing=_with_host_better(spec.timing))
        return
    timing, part = spec.timing, setup.deployment.model

    def built(change: Callable[[Device], Device]) -> Spec:
        device = change(part.device)
        return build(_with_model_workers(setup, Workers(device, part.count))).spec

    yield "KV memory", replace(spec, tokens_per_pool=int(spec.tokens_per_pool * BETTER))
    yield (
        "compute of model workers",
        built(lambda it: replace(it, flops={dtype: rate * BETTER for dtype, rate in it.flops.items()})),
    )
    faster = built(lambda it: replace(it, bandwidth_bytes_per_s=it.bandwidth_bytes_per_s * BETTER)).timing
    assert isinstance(faster, Timing)
    # Of devices that do attention too, the part of the weights alone.
    slices = {name: getattr(faster, name) for name in ("first_slice", "mid_slice", "last_slice", "q_lead")}
    yield "memory bandwidth for weights", replace(spec, timing=replace(timing, **slices))
    reading = replace(timing, attention_per_token=timing.attention_per_token / BETTER)
    yield "memory bandwidth for attention", replace(spec, timing=reading)
    if part.count > len(spec.replica_names):
        yield (
            "links between model workers",
            built(lambda it: replace(it, interchip_bytes_per_s=it.interchip_bytes_per_s * BETTER)),
        )
    if setup.deployment.attention is not None:
        was = setup.network
        wide = replace(was, bandwidth_bytes_per_s=was.bandwidth_bytes_per_s * BETTER)
        yield "network bandwidth", build(replace(setup, network=wide)).spec
        yield "network latency", build(replace(setup, network=replace(was, rtt_s=was.rtt_s / BETTER))).spec
    yield "host time", replace(spec, timing=_with_host_better(timing))


def _with_host_better(timing: AnyTiming) -> AnyTiming:
    return replace(
        timing, host_fixed=timing.host_fixed / BETTER, host_per_request=timing.host_per_request / BETTER
    )


def _better_boards(spec: Spec, timing: BoardTiming) -> Iterator[tuple[str, Spec]]:
    """Each part of the boards better in turn, all of them alike."""
    board = timing.board

    def built(better: Board) -> Spec:
        changed = replace(timing, board=better)
        tokens, _ = changed.kv_room()
        return replace(spec, timing=changed, tokens_per_pool=tokens)

    yield "HBM capacity", built(replace(board, hbm=_larger(board.hbm)))
    yield "HBM bandwidth", built(replace(board, hbm=_faster(board.hbm)))
    yield "LPDDR capacity", built(replace(board, lpddr=_larger(board.lpddr)))
    yield "LPDDR bandwidth", built(replace(board, lpddr=_faster(board.lpddr)))
    yield "compute of the chips", built(replace(board, clock_hz=board.clock_hz * BETTER))
    yield "link between the sides", built(replace(board, link_bytes_per_s=board.link_bytes_per_s * BETTER))


def _larger(memory: BoardMemory) -> BoardMemory:
    return replace(memory, capacity_bytes=memory.capacity_bytes * BETTER)


def _faster(memory: BoardMemory) -> BoardMemory:
    return replace(memory, bandwidth_bytes_per_s=memory.bandwidth_bytes_per_s * BETTER)


def _with_model_workers(setup: Setup, workers: Workers) -> Setup:
    return replace(setup, deployment=replace(setup.deployment, model=workers))
