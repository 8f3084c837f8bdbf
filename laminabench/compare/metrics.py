"""What is compared, by the names that gates and columns use, and where a summary has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from laminabench.analysis.estimate import Estimate, Interval
from laminabench.runs.summary import Summary, number_at

Sense = Literal["more", "less"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a replay's summary."""

    name: str
    title: str
    key: str  # in a summary; empty of what is computed from two of them
    better: Sense
    is_share: bool = False

    def interval(self, estimate: Estimate) -> Interval | None:
        """The estimate's, as far as this can be: no share is above 1."""
        found = estimate.interval
        return Interval(found.low, min(1.0, found.high)) if found and self.is_share else found

    def of(self, summary: Summary) -> float | None:
        """The number, None where the replay has none."""
        found = number_at(summary, self.key)
        return None if found is None else float(found)


def _tbt(which: str) -> Metric:
    return Metric(f"tbt_{which}", f"TBT {which}, ms", f"tbt_ms.{which}", "less")


def _seen(what: str, which: str) -> Metric:
    per_chunk = " a chunk" if what == "itl" else ""
    return Metric(f"{what}_{which}", f"{what.upper()} {which}{per_chunk}, ms", f"{what}_ms.{which}", "less")


THROUGHPUT = Metric("throughput", "throughput, tokens/s", "throughput_tokens_per_s", "more")
# At the base's price an hour, in proportion: as if one could buy any fraction of a deployment.
AT_EQUAL_COST = Metric("throughput_at_equal_cost", "throughput at the base's cost, tokens/s", "", "more")
# The same with rated power.
AT_EQUAL_POWER = Metric("throughput_at_equal_power", "throughput at the base's power, tokens/s", "", "more")
USD_PER_HOUR = Metric("usd_per_hour", "$ an hour", "cost.usd_per_hour", "less")
RATED_W = Metric("rated_w", "rated power, W", "energy.rated_w", "less")
# What is known of a deployment beforehand.
FIXED = (USD_PER_HOUR, RATED_W)
# Throughput and constants of the deployment, and so as sure as throughput is.
BY_THROUGHPUT = (
    Metric("usd_per_million_tokens", "$ a million tokens", "cost.usd_per_million_tokens", "less"),
    Metric("tokens_per_usd", "tokens a dollar", "cost.tokens_per_usd", "more"),
    Metric("joules_per_token", "J a token, at most", "energy.joules_per_token", "less"),
)
SUMMARISED = (
    THROUGHPUT,
    Metric("goodput", "goodput, tokens/s", "slo.goodput_tokens_per_s", "more"),
    Metric("mean_batch", "mean batch", "mean_batch", "more"),
    *(_tbt(which) for which in ("mean", "p50", "p90", "p99", "p99.9")),
    # Of replays that only a client saw.
    *(_seen(what, which) for what in ("ttft", "itl") for which in ("p50", "p99")),
    Metric("token_attainment", "tokens in time", "slo.token_attainment", "more", is_share=True),
    Metric("request_attainment", "requests in time", "slo.request_attainment", "more", is_share=True),
    *FIXED,
    *BY_THROUGHPUT,
)
METRICS = (THROUGHPUT, AT_EQUAL_COST, AT_EQUAL_POWER, *SUMMARISED[1:])
BY_NAME = {metric.name: metric for metric in METRICS}
