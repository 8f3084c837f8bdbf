"""Curves of cost against time between tokens: deployments replayed under limits of requests at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from laminabench.requests.replay import of_manifest
from laminabench.runs.read import Run
from laminabench.runs.summary import Summary
from laminabench.systems.base import Workload
from laminabench.systems.modelled.includes import accuracy_of
from laminabench.systems.modelled.prepared import PreparedModel, Routed, fleet_of, replay_on
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.registry import prepare, system
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.errors import UserError

# Points that cost more than so many times the curve's cheapest are of no use to a buyer.
RANGE = 8.0
# A point's requests: so many for each that may run at once, and no fewer than these.
FOR_EACH, FEWEST = 16, 1024


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A saturated replay with at most `batch` requests at once on each instance and board."""

    batch: int
    mean_batch: float
    tbt_s: float  # the 99th percentile
    tbt_p50_s: float
    dollars_per_million: float
    tokens_per_s: float
    requests: int  # of the trace, evenly spaced


@dataclass(frozen=True, slots=True)
class Curve:
    """A deployment's points, those with the fewest requests at once first."""

    system: str
    deployment: str
    error: float | None  # of modelled times, as a share; None where none is known
    points: tuple[CurvePoint, ...]

    def cheapest(self, slo_tbt_ms: float = math.inf) -> CurvePoint | None:
        """Return the cheapest point within the limit."""
        meeting = (each for each in self.points if 1000 * each.tbt_s <= slo_tbt_ms)
        return min(meeting, key=lambda each: each.dollars_per_million, default=None)


def curve_of(
    name: str, setup: Setup, routed: Routed, trace: Trace, workload: Workload, summary: Summary | None = None
) -> Curve:
    """Replay a deployment saturated under ever lower limits, as `--max-num-seqs` sets them.

    Limits are 1, 2, 3, 4, 6, 8, 12 and so on, in eighths near the deployment's own. Lower ones need fewer
    requests for a steady window, which are taken evenly from the trace. `summary` is the full replay's,
    where it was saturated.
    """
    saturated = replace(workload, mode="saturate", concurrency=None)
    hardware, own = routed.hardware(setup), system(name)
    if summary is None or workload.mode != "saturate":
        summary = replay_on(own, trace, setup, saturated, routed).summary
    fleet, built = fleet_of(own, setup, routed)
    each = len(fleet.batches)
    full = _point(built.spec.max_requests, summary, len(trace))
    points = [full] if full else []
    for limit in _limits(int(summary.mean_batch / each), built.spec.batches):
        count = min(len(trace), max(FEWEST, FOR_EACH * limit * each))
        sample = trace.take(np.linspace(0, len(trace) - 1, count).astype(np.int64))
        limited = replace(setup, max_num_seqs=limit)
        point = _point(limit, replay_on(own, sample, limited, saturated, routed).summary, count)
        if point is None:
            continue
        points.append(point)
        if point.dollars_per_million > RANGE * min(one.dollars_per_million for one in points):
            break
    return Curve(name, str(hardware), accuracy_of(name, setup).error, tuple(reversed(points)))


def curve_of_run(run: Run) -> Curve | None:
    """Return the curve of a modelled Run; None where its request does not give its numbers again.

    That is so for measured Runs, for traces of shared prefixes, which a Run does not have, and for Runs of
    another version of the model.
    """
    manifest = run.manifest
    if manifest.backend != "modelled" or manifest.partial or not len(run.prompt_tokens):
        return None
    try:
        request = of_manifest(manifest.request, str(run.directory), ())
        prepared = prepare(request)
        assert isinstance(prepared, PreparedModel)
        facts = manifest.trace
        trace = Trace(
            np.asarray(run.outcome.requests["arrival_s"], np.float64),
            run.prompt_tokens,
            run.output_tokens,
            TraceMeta(facts.name, has_arrivals=facts.has_arrivals, block_tokens=facts.block_tokens),
        )
        workload = Workload.of(request)
        summary = replay_on(prepared.system, trace, prepared.setup, workload, prepared.routed()).summary
        if summary.throughput_tokens_per_s != manifest.summary.throughput_tokens_per_s:
            return None
        return curve_of(request.system, prepared.setup, prepared.routed(), trace, workload, summary)
    except UserError:
        return None


def _limits(below: int, least: int) -> list[int]:
    """Return limits below a number, the highest first: close together near it, where points are cheap."""
    powers = [1 << place for place in range(below.bit_length())]
    limits = {*powers, *(3 * each // 2 for each in powers)}
    limits |= {each // 8 * step for each in powers[-1:] for step in range(8, 16)}
    return sorted((each for each in limits if least <= each < below), reverse=True)


def _point(limit: int, summary: Summary, requests: int) -> CurvePoint | None:
    """Return the point of a replay; None without a cost or a time between tokens."""
    usd, rate = summary.cost.usd_per_million_tokens, summary.throughput_tokens_per_s
    p50, p99 = summary.tbt_ms.p50, summary.tbt_ms.p99
    if usd is None or rate is None or p50 is None or p99 is None:
        return None
    return CurvePoint(limit, summary.mean_batch, p99 / 1000, p50 / 1000, usd, rate, requests)
