"""The metrics of a replay: name, unit, direction of improvement, and where each is shown.

The one list that gates, tables, reports, sweeps and goldens are made from. A metric is a number of a
`Summary`, by its dotted key; docs/metrics.md has the formulas, and tests hold its tables to this list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from laminabench.analysis.estimate import Estimate, Interval
from laminabench.runs.summary import Summary, number_at

Sense = Literal["more", "less"]
# Its uncertainty in a measured Run: from resampled iterations, as that of throughput, or none.
Certainty = Literal["resampled", "throughput", "fixed"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a summary, or several under one key."""

    key: str  # in a summary; empty if computed from two summaries
    unit: str = ""
    better: Sense | None = None
    name: str = ""  # in `compare` and its gates
    title: str = ""  # in tables of `compare` and of reports
    column: tuple[str, str] | None = None  # in a sweep: the name to sort by, and the title
    in_report: bool = False  # a row of its comparison, besides those of `compare`
    in_goldens: bool = False  # `check` compares it with goldens unless a case says otherwise
    certainty: Certainty = "resampled"

    @property
    def is_share(self) -> bool:
        return self.unit == "share"

    def interval(self, estimate: Estimate) -> Interval | None:
        """Return the estimate's interval, capped at 1 for a share."""
        interval = estimate.interval
        return Interval(interval.low, min(1.0, interval.high)) if interval and self.is_share else interval

    def of(self, summary: Summary) -> float | None:
        """Return the number; None where the replay has none."""
        value = number_at(summary, self.key)
        return None if value is None else float(value)


def _points(
    key: str, what: str, per: str, points: tuple[str, ...], sorts: dict[str, str]
) -> Iterator[Metric]:
    """Return the metrics of a distribution that are compared."""
    for point in points:
        column = (f"{what.lower()}-{point}", sorts[point]) if point in sorts else None
        yield Metric(
            f"{key}.{point}",
            "ms",
            "less",
            name=f"{what.lower()}_{point}",
            title=f"{what} {point}{per}, ms",
            column=column,
            in_goldens=column is not None,
        )


# In the order in which tables show them.
METRICS = (
    Metric("throughput_tokens_per_s", "tokens/s", "more", name="throughput",
           title="throughput, tokens/s", column=("throughput", "tokens/s"), in_goldens=True),
    # At the base's price an hour, in proportion: as if any fraction of a deployment could be rented.
    Metric("", "tokens/s", "more", name="throughput_at_equal_cost",
           title="throughput at the base's cost, tokens/s"),
    # The same with rated power.
    Metric("", "tokens/s", "more", name="throughput_at_equal_power",
           title="throughput at the base's power, tokens/s"),
    Metric("slo.goodput_tokens_per_s", "tokens/s", "more", name="goodput", title="goodput, tokens/s",
           in_goldens=True),
    Metric("mean_batch", "requests", "more", name="mean_batch", title="mean batch",
           column=("mean-batch", "batch"), in_goldens=True),
    Metric("mean_batches", "requests", "more"),
    Metric("tbt_ms", "ms", "less"),
    *_points("tbt_ms", "TBT", "", ("mean", "p50", "p90", "p99", "p99.9"),
             {"p50": "TBT p50 ms", "p99": "p99 ms"}),
    *_points("ttft_ms", "TTFT", "", ("p50", "p99"), {}),
    *_points("e2e_ms", "E2E", "", ("p50", "p99"), {}),
    Metric("ttft_ms", "ms", "less"),
    Metric("e2e_ms", "ms", "less"),
    *_points("itl_ms", "ITL", " a chunk", ("p50", "p99"), {}),
    Metric("slo.token_attainment", "share", "more", name="token_attainment",
           title="tokens in time", column=("attainment", "in time"), in_goldens=True),
    Metric("slo.request_attainment", "share", "more", name="request_attainment", title="requests in time"),
    Metric("slo.ttft_attainment", "share", "more", name="ttft_attainment", title="first tokens in time"),
    Metric("slo.joint_attainment", "share", "more", name="joint_attainment",
           title="requests within both limits"),
    Metric("slo.goodput_requests_per_s", "requests/s", "more", name="request_goodput",
           title="requests within both limits, a second"),
    Metric("cost.usd_per_hour", "$/h", "less", name="usd_per_hour", title="$ an hour", certainty="fixed"),
    Metric("energy.rated_w", "W", "less", name="rated_w", title="rated power, W", certainty="fixed"),
    Metric("cost.usd_per_million_tokens", "$", "less", name="usd_per_million_tokens",
           title="$ a million tokens", column=("cost", "$/M tokens"), in_goldens=True,
           certainty="throughput"),
    Metric("cost.tokens_per_usd", "tokens/$", "more", name="tokens_per_usd", title="tokens a dollar",
           certainty="throughput"),
    Metric("energy.joules_per_token", "J", "less", name="joules_per_token",
           title="J a token, at most", certainty="throughput"),
    Metric("tbt_ms.max", "ms", "less", title="TBT max, ms", in_report=True),
    Metric("tpot_ms", "ms", "less"),
    Metric("queueing_s", "s", "less"),
    Metric("queueing_s.p50", "s", "less", title="queueing p50, s", in_report=True),
    Metric("kv.peak_share", "share", title="KV memory in use, peak", in_report=True),
    Metric("requests.completed", "requests", "more", title="requests completed", in_report=True,
           in_goldens=True),
    Metric("requests.rejected", "requests", "less", title="requests rejected", in_report=True),
    Metric("requests.unfinished", "requests", "less"),
    Metric("preemptions", "", "less", title="preemptions", in_report=True),
    Metric("tokens_generated", "tokens", in_goldens=True),
    Metric("duration_s", "s", "less"),
    Metric("utilisation", "share", "more"),
    Metric("bubbles", "share", "less"),
    Metric("instances.throughput_tokens_per_s", "tokens/s", "more"),
    Metric("instances.mean_batch", "requests", "more"),
    Metric("instances.imbalance", "", "less"),
    Metric("prompt_pool.prompt_tokens_per_s", "tokens/s", "more"),
    Metric("memory.hbm_share.mean", "share", title="HBM in use, mean"),
    Metric("memory.hbm_share.max", "share", title="HBM in use, most"),
    Metric("memory.hbm_bytes.kv.mean", "bytes", title="KV in HBM, mean"),
    Metric("memory.hbm_bytes.qkv.mean", "bytes", title="QKV weights in HBM, mean"),
    Metric("memory.hbm_bytes.fc.mean", "bytes", title="FC weights in HBM, mean"),
    Metric("memory.lpddr_bytes.mean", "bytes", title="LPDDR in use, mean"),
    Metric("memory.wasted_bytes.mean", "bytes", title="Empty in pages, both memories, mean"),
    Metric("memory.mapping_changes", "", title="Changes of mapping"),
    Metric("memory.moved_bytes.total", "bytes", title="Moved between the memories"),
    Metric("memory.moved_bytes.per_iteration", "bytes", title="Moved an iteration, mean"),
    Metric("memory.moved_bytes.max", "bytes", title="Moved an iteration, most"),
    Metric("memory.compacted_bytes.total", "bytes", title="KV copied together within a memory"),
    Metric("memory.moving_share", "share", title="Moving and copying, share of the iterations' time"),
    Metric("memory.hideable_share", "share", title="Of that, could pass while LPDDR is idle"),
    Metric("memory.hbm_busy_share", "share", title="HBM side busy"),
    Metric("memory.lpddr_busy_share", "share", title="LPDDR side busy"),
)  # fmt: skip
# The metrics of `compare` and its gates, by name.
COMPARED = {metric.name: metric for metric in METRICS if metric.name}
THROUGHPUT, USD_PER_HOUR, RATED_W = (COMPARED[name] for name in ("throughput", "usd_per_hour", "rated_w"))
AT_EQUAL_COST, AT_EQUAL_POWER = (COMPARED[f"throughput_at_equal_{what}"] for what in ("cost", "power"))
# The ones that a single summary has.
SUMMARISED = tuple(metric for metric in COMPARED.values() if metric.key)
BOARDS = tuple(metric for metric in METRICS if metric.key.startswith("memory.") and metric.title)
COLUMNS = {metric.column[0]: metric for metric in METRICS if metric.column}
_SENSES = {metric.key: metric.better for metric in METRICS if metric.key and metric.better}
IN_GOLDENS = tuple(metric.key for metric in METRICS if metric.in_goldens)


def better(key: str) -> Sense | None:
    """Return which direction is better at a dotted key, by the nearest enclosing entry that defines it."""
    key = key.removeprefix("whole_run.")
    while key:
        if known := _SENSES.get(key):
            return known
        key = key.rpartition(".")[0]
    return None
