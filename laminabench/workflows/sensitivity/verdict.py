"""The verdict on two systems with all inputs as they are, and the input that it depends on most."""

from __future__ import annotations

import math
from dataclasses import replace

from laminabench.analysis.rates import cost
from laminabench.analysis.verdict import TBT, Contender, Verdict, verdict
from laminabench.systems.modelled.includes import accuracy_of
from laminabench.workflows.compare.cells import Placed
from laminabench.workflows.sensitivity.answer import Bar, Sensitivity
from laminabench.workflows.verdict import LOADS, limits


def verdict_on(result: Sensitivity, pair: Placed, slo_tbt_ms: float) -> Verdict:
    """Judge both systems, deployed as in `pair`."""
    setup = next(iter(pair.chosen.values())).setup
    # Only these two: a comparison chooses deployments of its own.
    pair_of = " and ".join(f"{name} on {result.deployments[name]}" for name in result.systems)
    load = f"{LOADS['saturate']}, only {pair_of} compared"
    subject = f"{pair.fitting.meta.name} with {setup.model.name} ({load})"
    contenders = [_contender(result, pair, name) for name in result.systems]
    judged = verdict(contenders, limits(slo_tbt_ms, None), subject=subject)
    most = depends(result.bars[0]) if result.bars else ""
    return replace(judged, depends=" ".join(filter(None, (judged.depends, most))))


def depends(bar: Bar) -> str:
    """Return the sentence on the input that changes the gain most."""
    low, high = bar.gains
    flips = f", and it flips {bar.flips}" if bar.within_range else ""
    return f"The gain depends most on {bar.input.title}: {low:+.1%} to {high:+.1%} over its range{flips}."


def _contender(result: Sensitivity, pair: Placed, name: str) -> Contender:
    base = result.base
    rate, usd_per_hour = base.tokens_per_s[name], base.usd_per_hour[name]
    return Contender(
        system=name,
        deployment=result.deployments[name],
        usd_per_million_tokens=cost(rate, usd_per_hour).usd_per_million_tokens or math.inf,
        tokens_per_s=rate,
        tbt_ms=base.tbt_ms[name],
        percentiles_ms={TBT: base.tbt_p99_ms[name]},
        error=accuracy_of(name, pair.chosen[name].setup).error,
    )
