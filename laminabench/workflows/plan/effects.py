"""Resources that bind a candidate: its replay again with one of them better at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np
from msgspec import UNSET, UnsetType

from laminabench.catalog.deployment import Workers
from laminabench.catalog.hardware import Device
from laminabench.catalog.network import Network
from laminabench.sim.spec import PromptPool, PromptTiming, Spec, Timing
from laminabench.systems.registry import system
from laminabench.util.parallel import spread
from laminabench.workflows.plan.measure import Point, measure
from laminabench.workflows.plan.question import Question
from laminabench.workflows.plan.stages import jobs_for
from laminabench.workflows.plan.stored import Effect

# A tenth more of what one has, or a tenth more speed.
BETTER = 1.1
# About as many as one candidate has.
MOST_RESOURCES = 10

_HOST = ("host_fixed", "host_per_request")
_CHUNKS = ("fixed", "per_row", "per_pair", "per_token", "windowed_per_pair")
_BY_ROWS = ("first_slice", "mid_slice", "last_slice", "attention_rows")

Gain = Literal["throughput_gain", "tbt_p99_gain", "ttft_p99_gain"]
Value = TypeVar("Value", Timing, PromptTiming, PromptPool, Device, Network)


def effects(question: Question, point: Point) -> list[Effect]:
    """Return the effects of the candidate's resources, the most helpful first."""
    helpful = []
    for resource, one in _better(question, point):
        spec = replace(one, copies=one.copies * point.candidate.instances)
        better = measure(question, question.trace, point.candidate, spec)
        rate = better.tokens_per_s / point.tokens_per_s - 1
        sooner: float | UnsetType = UNSET
        if point.ttft_p99_ms and better.ttft_p99_ms is not None:
            sooner = 1 - better.ttft_p99_ms / point.ttft_p99_ms
        helpful.append(
            Effect(
                resource=resource,
                throughput_gain=rate,
                elasticity=rate / (BETTER - 1),
                tbt_p99_gain=1 - better.tbt_p99_ms / point.tbt_p99_ms,
                ttft_p99_gain=sooner,
            )
        )
    gained = gained_by(question, point)
    return sorted(helpful, key=lambda each: -(getattr(each, gained) or 0.0))


def bindings(question: Question, points: Sequence[Point], jobs: int | None) -> dict[Point, list[Effect]]:
    """Return the effects for several candidates, on as many cores as it is worth."""
    jobs = jobs_for(MOST_RESOURCES * len(points), question.trace, jobs)
    return {points[index]: by_resource for index, by_resource in spread(effects, points, question, jobs=jobs)}


def gained_by(question: Question, point: Point) -> Gain:
    """Return what a resource can improve: tokens a second or, in an open replay, a time.

    Arrivals determine an open replay's tokens a second; the time is that whose limit is nearer.
    """
    if question.mode != "open":
        return "throughput_gain"
    used = point.tbt_p99_ms / question.slo_tbt_p99_ms
    if question.slo_ttft_ms and (point.ttft_p99_ms or 0.0) / question.slo_ttft_ms > used:
        return "ttft_p99_gain"
    return "tbt_p99_gain"


def _better(question: Question, point: Point) -> Iterator[tuple[str, Spec]]:
    """Yield the cluster with each resource better in turn; all else stays, even the devices' names."""
    candidate = point.candidate
    setup, build = question.setup(candidate), system(candidate.system).build
    spec = build(setup).spec
    most = int(spec.max_requests * BETTER)
    if not spec.prompt_budget or most <= spec.batches * spec.prompt_budget:  # each takes a token of it
        yield "requests at once", build(replace(setup, max_num_seqs=most)).spec
    if not isinstance(spec.timing, Timing):
        for resource, better, tokens in spec.timing.improved(BETTER):
            yield resource, replace(spec, timing=better, tokens_per_pool=tokens)
        yield "host time", replace(spec, timing=spec.timing.faster_host(BETTER))
        return
    timing, deployment = spec.timing, setup.deployment
    if timing.prompts is not None:
        yield "prompt computation", replace(spec, timing=_sooner(timing, timing.prompts, spec, point))
    if spec.pool is not None:
        yield "prompt computation", replace(spec, pool=_faster(spec.pool))
        yield "KV hand-over", replace(spec, pool=_less(spec.pool, "latency", "per_token"))

    def built(change: Callable[[Device], Device], *parts: Literal["model", "attention"]) -> Spec:
        workers = {name: getattr(deployment, name) for name in parts}
        better: dict[str, Workers] = {
            name: replace(part, device=change(part.device)) for name, part in workers.items() if part
        }
        return build(replace(setup, deployment=replace(deployment, **better))).spec

    def computing(it: Device) -> Device:
        return replace(it, flops={dtype: rate * BETTER for dtype, rate in it.flops.items()})

    yield "KV memory", replace(spec, tokens_per_pool=int(spec.tokens_per_pool * BETTER))
    yield "compute of model workers", built(computing, "model")
    if np.any(timing.attention_rows):
        yield "compute of attention workers", built(computing, "attention")
    faster = built(lambda it: _more(it, "bandwidth_bytes_per_s"), "model", "attention").timing
    assert isinstance(faster, Timing)
    # Of devices that do attention too, the part of the weights alone.
    slices = {name: getattr(faster, name) for name in (*_BY_ROWS, "q_lead")}
    yield "memory bandwidth for weights", replace(spec, timing=replace(timing, **slices))
    yield "memory bandwidth for attention", replace(spec, timing=_read_sooner(timing))
    if deployment.model.count > len(spec.replica_names):
        yield (
            "links between model workers",
            built(lambda it: _more(it, "interchip_bytes_per_s"), "model"),
        )
    if deployment.attention is not None:
        wide, near = _more(setup.network, "bandwidth_bytes_per_s"), _less(setup.network, "rtt_s")
        yield "network bandwidth", build(replace(setup, network=wide)).spec
        yield "network latency", build(replace(setup, network=near)).spec
    yield "host time", replace(spec, timing=_less(timing, *_HOST))


def _sooner(timing: Timing, prompts: PromptTiming, spec: Spec, point: Point) -> Timing:
    """Return the timing with faster prompts: the average rows beyond decoding ones, and their attention."""
    decoding = min(round(point.mean_batch / spec.batches), spec.prompt_budget)

    slices: dict[str, Any] = {}
    for name in _BY_ROWS:
        table = slices[name] = np.array(np.broadcast_to(getattr(timing, name), len(timing.first_slice)))
        table[decoding:] = table[decoding] + (table[decoding:] - table[decoding]) / BETTER
    less = _less(prompts, *_CHUNKS)
    measured = timing.measured and timing.measured.faster(BETTER, "prompt")
    return replace(timing, prompts=less, measured=measured, **slices)


def _read_sooner(timing: Timing) -> Timing:
    """Return the timing with faster attention in decoding."""
    measured = timing.measured and timing.measured.faster(BETTER, "decode", "mixed")
    return replace(_less(timing, "attention_per_token", "windowed_per_token"), measured=measured)


def _faster(pool: PromptPool) -> PromptPool:
    """Return the pool with engines that take less time for everything."""
    timing = pool.engine.timing
    assert isinstance(timing, Timing)
    assert timing.prompts is not None
    prompts = _less(timing.prompts, "head", *_CHUNKS)
    sooner = _less(replace(timing, prompts=prompts), *_BY_ROWS, *_HOST)
    return replace(pool, engine=replace(pool.engine, timing=sooner))


def _more(value: Value, *names: str) -> Value:
    return replace(value, **{name: getattr(value, name) * BETTER for name in names})


def _less(value: Value, *names: str) -> Value:
    return replace(value, **{name: getattr(value, name) / BETTER for name in names})
