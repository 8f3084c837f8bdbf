"""The metrics of a replay: what each is called, its unit and formula, which way is better, where it is shown.

The one list that gates, tables, reports, sweeps, goldens and docs/metrics.md are made from. A metric is a
number of a `Summary`, by its dotted key; an entry with a formula also stands for all keys within it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from laminabench.analysis.estimate import Estimate, Interval
from laminabench.runs.summary import Summary, number_at

Sense = Literal["more", "less"]
# How it is known in a measured Run: drawn from its iterations, as sure as throughput is, or known beforehand.
Certainty = Literal["resampled", "throughput", "fixed"]
# The tables of docs/metrics.md, by their headings.
Section = Literal["throughput", "tokens", "attainment", "cost", "time", "boards", "client"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a summary, or several under one key."""

    key: str  # in a summary; empty of what is computed from two of them
    unit: str = ""
    better: Sense | None = None
    section: Section | None = None  # of docs/metrics.md, for those with a formula
    formula: str = ""  # in Markdown; the entry of the key around it has it, where there is none
    name: str = ""  # of `compare` and its gates
    title: str = ""  # in tables of `compare` and of reports
    column: tuple[str, str] | None = None  # of a sweep: the name to sort by, and the title
    in_report: bool = False  # a row of its comparison, beside those of `compare`
    in_goldens: bool = False  # what `check` holds against goldens unless a case says otherwise
    certainty: Certainty = "resampled"

    @property
    def is_share(self) -> bool:
        return self.unit == "share"

    def interval(self, estimate: Estimate) -> Interval | None:
        """The estimate's, as far as this can be: no share is above 1."""
        found = estimate.interval
        return Interval(found.low, min(1.0, found.high)) if found and self.is_share else found

    def of(self, summary: Summary) -> float | None:
        """The number, None where the replay has none."""
        found = number_at(summary, self.key)
        return None if found is None else float(found)


def _points(
    key: str, what: str, per: str, points: tuple[str, ...], sorts: dict[str, str]
) -> Iterator[Metric]:
    """Those of a distribution that are compared."""
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
    Metric("throughput_tokens_per_s", "tokens/s", "more", "throughput", name="throughput",
           title="throughput, tokens/s", column=("throughput", "tokens/s"), in_goldens=True,
           formula="tokens made in the window / its seconds. One iteration makes one token for each of its "
                   "requests"),
    # At the base's price an hour, in proportion: as if any fraction of a deployment could be had.
    Metric("", "tokens/s", "more", name="throughput_at_equal_cost",
           title="throughput at the base's cost, tokens/s"),
    # The same with rated power.
    Metric("", "tokens/s", "more", name="throughput_at_equal_power",
           title="throughput at the base's power, tokens/s"),
    Metric("slo.goodput_tokens_per_s", "tokens/s", "more", "attainment", name="goodput",
           title="goodput, tokens/s", in_goldens=True,
           formula="tokens that were not late / the window's seconds. First tokens have no gap to be late "
                   "by"),
    Metric("mean_batch", "requests", "more", "throughput", name="mean_batch", title="mean batch",
           column=("mean-batch", "batch"), in_goldens=True,
           formula="requests being served at once: over all iterations, requests x the time inside the "
                   "window, summed / the window's time"),
    Metric("mean_batches", "requests", "more", "throughput",
           formula="the same of each batch; their sum is `mean_batch`"),
    Metric("tbt_ms", "ms", "less", "tokens",
           formula="of the gaps between two consecutive tokens of one request, *all* gaps of all requests "
                   "together: `mean`, `p50`, `p90`, `p99`, `p99.9`, `max`. A first token has no gap. A "
                   "preempted request has one long gap"),
    *_points("tbt_ms", "TBT", "", ("mean", "p50", "p90", "p99", "p99.9"),
             {"p50": "TBT p50 ms", "p99": "p99 ms"}),
    *_points("ttft_ms", "TTFT", "", ("p50", "p99"), {}),
    *_points("itl_ms", "ITL", " a chunk", ("p50", "p99"), {}),
    Metric("slo.tbt_ms", "ms", None, "attainment",
           formula="the limit, `--slo-tbt-ms`"),
    Metric("slo.token_attainment", "share", "more", "attainment", name="token_attainment",
           title="tokens in time", column=("attainment", "in time"), in_goldens=True,
           formula="gaps within the limit / gaps"),
    Metric("slo.request_attainment", "share", "more", "attainment", name="request_attainment",
           title="requests in time",
           formula="requests *all* of whose gaps are within the limit / requests that finished in the "
                   "window"),
    Metric("cost.usd_per_hour", "$/h", "less", "cost", name="usd_per_hour", title="$ an hour",
           certainty="fixed",
           formula="devices x their prices (`hardware list` says from where); null where one has none. "
                   "Hosts and network are in it as far as the price has them"),
    Metric("energy.rated_w", "W", "less", "cost", name="rated_w", title="rated power, W", certainty="fixed",
           formula="devices x their rated watts, from their data sheets; null where one has no rating"),
    Metric("cost.usd_per_million_tokens", "$", "less", "cost", name="usd_per_million_tokens",
           title="$ a million tokens", column=("cost", "$/M tokens"), in_goldens=True,
           certainty="throughput",
           formula="$/hour / (throughput x 3600) x 10^6"),
    Metric("cost.tokens_per_usd", "tokens/$", "more", "cost", name="tokens_per_usd", title="tokens a dollar",
           certainty="throughput",
           formula="throughput x 3600 / $/hour"),
    Metric("energy.joules_per_token", "J", "less", "cost", name="joules_per_token",
           title="J a token, at most", certainty="throughput",
           formula="rated watts / throughput: an **upper bound** (`energy.bound` says so), as if every "
                   "device drew its rated power all the time. Hosts, network and cooling are not counted"),
    Metric("tbt_ms.max", "ms", "less", title="TBT max, ms", in_report=True),
    Metric("tpot_ms", "ms", "less", "tokens",
           formula="of each request that finished with more than one token: (last token - first token) / "
                   "(tokens - 1); then mean, percentiles and max over requests"),
    Metric("queueing_s", "s", "less", "tokens",
           formula="from arrival to the first iteration's admission, of each request admitted in the "
                   "window"),
    Metric("queueing_s.p50", "s", "less", title="queueing p50, s", in_report=True),
    Metric("kv", "tokens", None, "throughput",
           formula="`capacity_tokens`; `peak_tokens`, the most in use at any time; `peak_share` of the "
                   "capacity"),
    Metric("kv.peak_share", "share", title="KV memory in use, peak", in_report=True),
    Metric("requests", "requests", None, "throughput",
           formula="`completed`; `rejected` (could never fit); `unfinished` (the run was stopped); "
                   "`failed` (an error, and the run went on)"),
    Metric("requests.completed", "requests", "more", title="requests completed", in_report=True,
           in_goldens=True),
    Metric("requests.rejected", "requests", "less", title="requests rejected", in_report=True),
    Metric("requests.unfinished", "requests", "less"),
    Metric("preemptions", "", "less", "throughput", title="preemptions", in_report=True,
           formula="how often a request had to make room"),
    Metric("tokens_generated", "tokens", None, "throughput", in_goldens=True,
           formula="of the whole run"),
    Metric("duration_s", "s", "less", "throughput",
           formula="of the whole run"),
    Metric("time_shares", "share", None, "time",
           formula="of a token's time, each iteration weighted by its tokens: `model`, `attention`, "
                   "`network`, `host` (each as if alone), `waiting` (what no part accounts for), "
                   "`overlapped` (by how much parts exceed the iteration). The first five less the last "
                   "are 1"),
    Metric("utilisation", "share", "more", "time",
           formula="busy time of the model replicas (their mean) and of the attention workers / the "
                   "window; `whole_run` has each worker"),
    Metric("bubbles", "share", "less", "time",
           formula="1 - utilisation, of the same workers; of the devices, where model and attention share "
                   "them"),
    Metric("memory.hbm_capacity_bytes", "bytes", None, "boards",
           formula="of a board's HBM"),
    Metric("memory.hbm_share", "share", None, "boards",
           formula="`mean` and `max` of what is allocated in HBM / its capacity"),
    Metric("memory.hbm_share.mean", "share", title="HBM in use, mean"),
    Metric("memory.hbm_share.max", "share", title="HBM in use, most"),
    Metric("memory.hbm_bytes", "bytes", None, "boards",
           formula="of that, `kv`, `qkv` (weights of the QKV projection) and `fc` (weights of output "
                   "projection, feed-forward and LM head): `mean`, `max`"),
    Metric("memory.hbm_bytes.kv.mean", "bytes", title="KV in HBM, mean"),
    Metric("memory.hbm_bytes.qkv.mean", "bytes", title="QKV weights in HBM, mean"),
    Metric("memory.hbm_bytes.fc.mean", "bytes", title="FC weights in HBM, mean"),
    Metric("memory.lpddr_bytes", "bytes", None, "boards",
           formula="allocated in LPDDR: `mean`, `max`"),
    Metric("memory.lpddr_bytes.mean", "bytes", title="LPDDR in use, mean"),
    Metric("memory.wasted_bytes", "bytes", None, "boards",
           formula="allocated in either and holding nothing, the rest of pages: `mean`, `max`"),
    Metric("memory.wasted_bytes.mean", "bytes", title="Empty in pages, both memories, mean"),
    Metric("memory.mapping_changes", "", None, "boards", title="Changes of mapping",
           formula="iterations with another mapping than the one before them on their board"),
    Metric("memory.changes_per_iteration", "", None, "boards",
           formula="the same / iterations"),
    Metric("memory.moved_bytes", "bytes", None, "boards",
           formula="from one side to the other: `total`, `per_iteration` (the mean over all, those that "
                   "moved nothing included), `max`"),
    Metric("memory.moved_bytes.total", "bytes", title="Moved between the memories"),
    Metric("memory.moved_bytes.per_iteration", "bytes", title="Moved an iteration, mean"),
    Metric("memory.moved_bytes.max", "bytes", title="Moved an iteration, most"),
    Metric("memory.compacted_bytes", "bytes", None, "boards",
           formula="of KV copied within a side, so that fewer pages hold it: the same"),
    Metric("memory.compacted_bytes.total", "bytes", title="KV copied together within a memory"),
    Metric("memory.moving_s", "s", None, "boards",
           formula="how long moving and copying take, summed"),
    Metric("memory.moving_share", "share", None, "boards",
           title="Moving and copying, share of the iterations' time",
           formula="the same / the iterations' durations"),
    Metric("memory.hideable_share", "share", None, "boards", title="Of that, could pass while LPDDR is idle",
           formula="of `moving_s`, what could pass behind the iteration before, in time in which LPDDR's "
                   "bandwidth is not in use. Whether it does is the replay's choice"),
    Metric("memory.hbm_busy_share", "share", None, "boards", title="HBM side busy",
           formula="time in which the HBM side computes or reads / the iterations' durations"),
    Metric("memory.lpddr_busy_share", "share", None, "boards", title="LPDDR side busy",
           formula="the same of the LPDDR side"),
    Metric("itl_ms", "ms", None, "client",
           formula="per chunk: the gaps between two consecutive chunks of one request, in the window"),
    Metric("tokens_per_chunk", "tokens", None, "client",
           formula="`mean`, `max` of the chunks in the window; `even_share`, the share of their tokens "
                   "whose server did not say which chunk they were in, so that they were dealt evenly: for "
                   "them TBT is a guess and ITL is not"),
    Metric("ttft_ms", "ms", None, "client",
           formula="first chunk - when the first attempt was sent, of requests whose first chunk came in "
                   "the window. Attempts that failed are in it"),
    Metric("e2e_ms", "ms", None, "client",
           formula="last chunk - when the first attempt was sent, of requests that finished in the window"),
    Metric("mean_waiting", "requests", None, "client",
           formula="requests that were sent and had no chunk yet, at once: the time inside the window, "
                   "summed / the window's time; those that never got one are left out"),
    Metric("lateness_ms", "ms", None, "client",
           formula="when its first attempt was sent - when it was due, `p50`, `p99`, `max` of the whole "
                   "run: how well this client kept the trace's timestamps. Null unless the mode is `open`"),
    Metric("attempts", "", None, "client",
           formula="of the whole run: `sent`; `retried`, those of them that were not a request's first; "
                   "`failed`, requests given up; `by_error`, why, by how often (the 20 most frequent); "
                   "`by_status`, requests by the HTTP status of their last answer"),
    Metric("counted", "tokens", None, "client",
           formula="`prompt_tokens` and `completion_tokens`: of the `requests` whose server said how many, "
                   "what was `asked` for, what it `said`, and in how many they are `other`. "
                   "`other_length`: requests that came to their end with another number of tokens than "
                   "asked for"),
)  # fmt: skip
# Of `compare` and its gates, by name.
COMPARED = {metric.name: metric for metric in METRICS if metric.name}
THROUGHPUT, USD_PER_HOUR, RATED_W = (COMPARED[name] for name in ("throughput", "usd_per_hour", "rated_w"))
AT_EQUAL_COST, AT_EQUAL_POWER = (COMPARED[f"throughput_at_equal_{what}"] for what in ("cost", "power"))
# Those of them that a summary has by itself.
SUMMARISED = tuple(metric for metric in COMPARED.values() if metric.key)
BOARDS = tuple(metric for metric in METRICS if metric.key.startswith("memory.") and metric.title)
COLUMNS = {metric.column[0]: metric for metric in METRICS if metric.column}
IN_GOLDENS = tuple(metric.key for metric in METRICS if metric.in_goldens)


def better(key: str) -> Sense | None:
    """Which way is better of whatever is at a dotted key, by the nearest entry around it that says so."""
    key = key.removeprefix("whole_run.")
    while key:
        if known := _senses().get(key):
            return known
        key = key.rpartition(".")[0]
    return None


@cache
def _senses() -> dict[str, Sense]:
    return {metric.key: metric.better for metric in METRICS if metric.key and metric.better}


def documented(page: str) -> str:
    """docs/metrics.md with its tables as they are here; run as a program, this module writes it."""
    return re.sub(r"(<!-- metrics: (\w+) -->\n).*?(\n<!-- end -->)", _table, page, flags=re.DOTALL)


def _table(match: re.Match[str]) -> str:
    begin, section, end = match.groups()
    lines = ["| key | unit | better | formula |", "|---|---|---|---|"]
    for metric in METRICS:
        if metric.section == section:
            lines.append(f"| `{metric.key}` | {metric.unit} | {metric.better or ''} | {metric.formula} |")
    return begin + "\n".join(lines) + end


if __name__ == "__main__":
    _page = Path("docs/metrics.md")
    _page.write_text(documented(_page.read_text(encoding="utf-8")), encoding="utf-8")
