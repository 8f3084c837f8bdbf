"""The summary of a replay, from its tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from laminabench.analysis import rates
from laminabench.analysis.attainment import (
    in_time,
    limit_ticks,
    requests_in_time,
    token_attainment,
)
from laminabench.analysis.calls import of_client
from laminabench.analysis.distribution import total
from laminabench.analysis.memory import memory_of
from laminabench.analysis.streams import Observed, arrivals, observed_of
from laminabench.analysis.tbt import Tokens, tbt, tokens_of
from laminabench.analysis.window import whole_run, window
from laminabench.runs.status import STATUSES, statuses
from laminabench.runs.summary import (
    Attainment,
    EngineSummary,
    Kv,
    PerInstance,
    PoolShares,
    PromptPool,
    Rates,
    Requests,
    Summary,
    Window,
    WorkerShares,
)
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import Mode, ticks

PER_S, PER_MS = 1.0, 1000.0


def summarise(
    outcome: Outcome,
    lengths: rates.Lengths,
    *,
    mode: Mode,
    slo_tbt_ms: float,
    usd_per_hour: float | None,
    power_w: float | None = None,
    shared_devices: bool = False,
    slo_ttft_ms: float | None = None,
    prompts: bool = False,
    instances: int = 1,
) -> Summary:
    """Return all numbers of the steady window, and the main ones of the full run.

    `shared_devices`: attention runs on the model workers' own devices, so a bubble is when neither works.
    `instances`: number of instances where attention has devices of its own; busy times are summed over all.
    `prompts`: whether prompts were computed, so that the time to the first token is meaningful.
    """
    steady, everything = window(outcome, mode), whole_run(outcome)
    observed = observed_of(outcome)
    tokens = tokens_of(outcome, observed)
    limits = (slo_tbt_ms, slo_ttft_ms)
    full_run = _rates(outcome, tokens, observed, everything, limits)
    headline = full_run if steady == everything else _rates(outcome, tokens, observed, steady, limits)
    del tokens
    counts = np.bincount(statuses(outcome), minlength=len(STATUSES)).tolist()
    # Where attention shares the replicas' devices, each replica is an attention pool.
    used = _utilisation(outcome, steady, len(outcome.replica_busy_s) if shared_devices else instances)
    summary = Summary(
        **asdict(headline),
        cost=rates.cost(headline.throughput_tokens_per_s, usd_per_hour),
        energy=rates.energy(headline.throughput_tokens_per_s, power_w),
        requests=Requests(**dict(zip(("completed", *STATUSES[1:]), counts, strict=True))),
        tokens_generated=sum(total(made) for _, made in arrivals(outcome)),
        duration_s=outcome.end_s,
        window=steady,
        whole_run=full_run,
        time_shares=rates.time_shares(outcome, steady),
        utilisation=used,
        bubbles=_bubbles(used, shared_devices=shared_devices),
        queueing_s=rates.queueing(outcome, steady).describe(PER_S),
        tpot_ms=rates.tpot(outcome, lengths, steady, observed).describe(PER_MS),
        # Only known where the scheduler is ours.
        preemptions=None if observed else total(outcome.requests["preemptions"]),
        kv=Kv() if observed else _kv(outcome),
    )
    if observed:
        return of_client(summary, outcome, lengths, observed, mode)
    if prompts:
        first, last = (rates.since_arrival(outcome, at, steady) for at in ("first_token_s", "finished_s"))
        summary = replace(summary, ttft_ms=first.describe(PER_MS), e2e_ms=last.describe(PER_MS))
    several = len(outcome.instance_batches) > 1
    return EngineSummary(
        **asdict(summary),
        memory=memory_of(outcome, steady) if outcome.memory is not None else UNSET,
        instances=instances_of(outcome, lengths, steady, headline.mean_batches) if several else UNSET,
        prompt_pool=prompt_pool_of(outcome, steady) if outcome.pool is not None else UNSET,
    )


def _kv(outcome: Outcome) -> Kv:
    capacity, peak = int(outcome.kv_capacity_tokens), int(outcome.peak_kv_tokens)
    return Kv(capacity_tokens=capacity, peak_tokens=peak, peak_share=peak / capacity if capacity else None)


def _rates(
    outcome: Outcome, tokens: Tokens, client: Observed | None, of: Window, limits: tuple[float, float | None]
) -> Rates:
    slo_tbt_ms, slo_ttft_ms = limits
    limit = limit_ticks(slo_tbt_ms)
    made = rates.produced(outcome, of)
    gaps = tbt(tokens, of)
    batches = rates.mean_batches(outcome, of, client)
    first = None if slo_ttft_ms is None else limit_ticks(slo_ttft_ms)
    # A tally does not record which request its tokens belong to.
    met = None if outcome.tally else requests_in_time(outcome, tokens, limit, of, first)
    slo = Attainment(
        tbt_ms=slo_tbt_ms,
        token_attainment=token_attainment(gaps, limit),
        request_attainment=met.share if met else None,
        goodput_tokens_per_s=rates.per_second(in_time(made, gaps, limit), of),
    )
    if slo_ttft_ms is not None and first is not None:
        waits = rates.since_arrival(outcome, "first_token_s", of)
        slo = replace(
            slo,
            ttft_ms=slo_ttft_ms,
            ttft_attainment=token_attainment(waits, first),
            joint_attainment=met.both / met.finished if met and met.finished else None,
            goodput_requests_per_s=rates.per_second(met.both, of) if met else None,
        )
    return Rates(
        throughput_tokens_per_s=rates.per_second(made, of),
        mean_batch=sum(batches),
        mean_batches=batches,
        tbt_ms=gaps.describe(PER_MS),
        slo=slo,
    )


def _utilisation(outcome: Outcome, steady: Window, attention_pools: int) -> PoolShares:
    """Return utilisation of the pools in the window and, where complete, of each worker over the full run."""
    # A lost worker's busy time is lost with it.
    complete = rates.unknown_until_s(outcome) == 0

    def share(busy: float) -> float | None:
        return rates.share_of_run(outcome, busy) if complete else None

    return PoolShares(
        **rates.utilisation(outcome, steady, attention_pools=attention_pools),
        whole_run=WorkerShares(
            replicas=[share(float(busy)) for busy in outcome.replica_busy_s],
            attention=share(outcome.attention_busy_s / attention_pools),
        ),
    )


def _bubbles(used: PoolShares, *, shared_devices: bool) -> PoolShares:
    """Return 1 - utilisation of the same workers, or of the devices that model and attention share."""

    def idle(*busy: float | UnsetType | None) -> float | None:
        known = [share for share in busy if share is not None and share is not UNSET]
        return max(0.0, 1.0 - sum(known)) if known else None

    replicas, attention = used.whole_run.replicas or [], used.whole_run.attention
    if shared_devices:
        # Attention is taken to be spread evenly over the replicas' devices.
        return PoolShares(
            devices=idle(used.model, used.attention),
            whole_run=WorkerShares(devices=[idle(share, attention) for share in replicas]),
        )
    return PoolShares(
        model=idle(used.model),
        attention=idle(used.attention),
        whole_run=WorkerShares(replicas=[idle(share) for share in replicas], attention=idle(attention)),
    )


def instances_of(
    outcome: Outcome, lengths: rates.Lengths, window: Window, mean_batches: Sequence[float]
) -> PerInstance:
    """Return the numbers of each instance; `mean_batches` are those of all batches that ran.

    Where iterations were not stored, they are computed from the requests' times.
    """
    instances = len(outcome.instance_batches)
    of_batch = np.repeat(np.arange(instances), outcome.instance_batches)
    requests = outcome.requests
    here = np.flatnonzero(requests["batch"] >= 0)
    instance = of_batch[requests["batch"][here]]
    batches = [0.0] * instances
    if outcome.tally is None:
        columns = outcome.iterations
        ends = ticks(columns["start_s"]) + ticks(columns["duration_s"])
        inside = (ends > window.start) & (ends <= window.end)
        made = np.bincount(of_batch[columns["batch"][inside]], columns["size"][inside], minlength=instances)
        for number, size in zip(of_batch, mean_batches, strict=False):
            batches[number] += size
    else:
        made = np.bincount(instance, lengths.output_tokens[here], minlength=instances)
        there_s = requests["finished_s"][here] - requests["admitted_s"][here]
        there = np.bincount(instance, there_s, minlength=instances)
        batches = (there / outcome.end_s).tolist() if outcome.end_s else batches
    mean = sum(batches) / instances
    return PerInstance(
        requests=np.bincount(instance, minlength=instances).tolist(),
        throughput_tokens_per_s=[rates.per_second(some, window) for some in made.tolist()],
        mean_batch=batches,
        imbalance=max(batches) / mean if mean else None,
    )


def prompt_pool_of(outcome: Outcome, window: Window) -> PromptPool:
    """Return the prompt pool's numbers in the window; of an iteration cut by its edge, the part inside."""
    assert outcome.pool is not None
    columns = outcome.pool
    start = ticks(columns["start_s"])
    duration = ticks(columns["duration_s"])
    inside = rates.overlap(start, start + duration, window)
    share = inside / np.maximum(duration, 1)
    engines = outcome.pool_engines or 1 + int(columns["engine"].max(initial=-1))
    ended = (start + duration > window.start) & (start + duration <= window.end)
    tokens = total(columns["prompt_tokens"][ended])
    busy_s = float(np.sum(columns["busy_s"] * share))
    seconds = window.end_s - window.start_s
    return PromptPool(
        engines=engines,
        prompt_tokens_per_s=rates.per_second(tokens, window),
        busy_share=min(1.0, busy_s / (engines * seconds)) if engines and seconds else None,
    )
