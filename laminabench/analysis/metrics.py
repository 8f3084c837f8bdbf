"""The summary of a replay: what `--json` prints and a Run's manifest keeps."""

from __future__ import annotations

from typing import Any

import numpy as np

from laminabench.analysis import rates
from laminabench.analysis.arrivals import arrivals
from laminabench.analysis.calls import of_calls
from laminabench.analysis.exact import total
from laminabench.analysis.memory import memory_of
from laminabench.analysis.slo import in_time, limit_ticks, request_attainment, token_attainment
from laminabench.analysis.streams import Seen, seen_of
from laminabench.analysis.tbt import Tokens, tbt, tokens_of
from laminabench.analysis.window import Window, whole_run, window
from laminabench.runs.status import STATUSES, statuses
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import Mode

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
) -> dict[str, Any]:
    """Everything of the steady window, and the main numbers of the whole run beside it; ready for JSON.

    `shared_devices`: attention runs on the model workers' own devices, so a bubble is when neither works.
    """
    steady, whole = window(outcome, mode), whole_run(outcome)
    seen = seen_of(outcome)
    tokens = tokens_of(outcome, seen)
    of_whole = _rates(outcome, tokens, seen, whole, slo_tbt_ms)
    headline = of_whole if steady == whole else _rates(outcome, tokens, seen, steady, slo_tbt_ms)
    del tokens
    counts = np.bincount(statuses(outcome), minlength=len(STATUSES)).tolist()
    # Of devices that do both each replica has its own attention.
    used = _utilisation(outcome, steady, len(outcome.replica_busy_s) if shared_devices else 1)
    return {
        **headline,
        "cost": rates.cost(headline["throughput_tokens_per_s"], usd_per_hour),
        "energy": rates.energy(headline["throughput_tokens_per_s"], power_w),
        "requests": dict(zip(("completed", *STATUSES[1:]), counts, strict=True)),
        "tokens_generated": sum(total(made) for _, made in arrivals(outcome)),
        "duration_s": outcome.end_s,
        "window": steady.describe(),
        "whole_run": of_whole,
        "time_shares": rates.time_shares(outcome, steady),
        "utilisation": used,
        "bubbles": _bubbles(used, shared_devices=shared_devices),
        "queueing_s": rates.queueing(outcome, steady).describe(PER_S),
        "tpot_ms": rates.tpot(outcome, lengths, steady, seen).describe(PER_MS),
        **_inside(outcome),
        **({"memory": memory_of(outcome, steady)} if outcome.memory is not None else {}),
        **(of_calls(outcome, lengths, seen, mode, steady) if seen else {}),
    }


def _inside(outcome: Outcome) -> dict[str, Any]:
    """What is only known of a replay whose scheduler can be asked."""
    capacity, peak = outcome.kv_capacity_tokens, outcome.peak_kv_tokens
    if outcome.chunks is not None:
        kv = dict.fromkeys(("capacity_tokens", "peak_tokens", "peak_share"))
        return {"preemptions": None, "kv": kv}
    share = peak / capacity if capacity else None
    return {
        "preemptions": total(outcome.requests["preemptions"]),
        "kv": {"capacity_tokens": capacity, "peak_tokens": peak, "peak_share": share},
    }


def _rates(
    outcome: Outcome, tokens: Tokens, seen: Seen | None, of: Window, slo_tbt_ms: float
) -> dict[str, Any]:
    limit = limit_ticks(slo_tbt_ms)
    made = rates.produced(outcome, of)
    gaps = tbt(tokens, of)
    batches = rates.mean_batches(outcome, of, seen)
    return {
        "throughput_tokens_per_s": rates.per_second(made, of),
        "mean_batch": sum(batches),
        "mean_batches": batches,
        "tbt_ms": gaps.describe(PER_MS),
        "slo": {
            "tbt_ms": slo_tbt_ms,
            "token_attainment": token_attainment(gaps, limit),
            "request_attainment": request_attainment(outcome, tokens, limit, of),
            "goodput_tokens_per_s": rates.per_second(in_time(made, gaps, limit), of),
        },
    }


def _utilisation(outcome: Outcome, steady: Window, attention_pools: int) -> dict[str, Any]:
    """Of the pools in the window; of each worker over the whole run, as its busy time is known for that."""
    # Who is gone took its sum along.
    whole = rates.unknown_until_s(outcome) == 0

    def share(busy: float) -> float | None:
        return rates.share_of_run(outcome, busy) if whole else None

    return {
        **rates.utilisation(outcome, steady, attention_pools=attention_pools),
        "whole_run": {
            "replicas": [share(float(busy)) for busy in outcome.replica_busy_s],
            "attention": share(outcome.attention_busy_s / attention_pools),
        },
    }


def _bubbles(used: dict[str, Any], *, shared_devices: bool) -> dict[str, Any]:
    """1 - utilisation, of the same workers; of the devices, where model and attention share them."""

    def idle(*busy: float | None) -> float | None:
        known = [share for share in busy if share is not None]
        return max(0.0, 1.0 - sum(known)) if known else None

    replicas, attention = used["whole_run"]["replicas"], used["whole_run"]["attention"]
    if shared_devices:
        # Attention is taken to be spread evenly over the replicas' devices.
        return {
            "devices": idle(used["model"], used["attention"]),
            "whole_run": {"devices": [idle(share, attention) for share in replicas]},
        }
    return {
        "model": idle(used["model"]),
        "attention": idle(used["attention"]),
        "whole_run": {"replicas": [idle(share) for share in replicas], "attention": idle(attention)},
    }
