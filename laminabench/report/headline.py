"""The comparison that the page opens with: one card a Run, then every number beside the first Run's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from laminabench.analysis.estimate import CONFIDENCE, UNKNOWN, Estimate, Interval, ratio
from laminabench.compare.metrics import SUMMARISED, Metric, Sense
from laminabench.present.numbers import number4, share
from laminabench.report.markup import Markup, exactly, joined, table, tag
from laminabench.report.shown import Shown

TIMES = "\N{MULTIPLICATION SIGN}"


class Row(NamedTuple):
    """A number of every Run, and which way is better, if either is."""

    title: str
    path: str
    better: Sense | None
    written: Callable[[float | None], str]
    metric: Metric | None = None


def _compared(metric: Metric) -> Row:
    """A row of `laminabench compare`."""
    title, written = metric.title[0].upper() + metric.title[1:], share if metric.is_share else number4
    return Row(title, metric.key, metric.better, written, metric)


ROWS = (
    *map(_compared, SUMMARISED),
    Row("TBT max, ms", "tbt_ms.max", "less", number4),
    Row("Queueing p50, s", "queueing_s.p50", "less", number4),
    Row("KV memory in use, peak", "kv.peak_share", None, share),
    Row("Requests completed", "requests.completed", None, number4),
    Row("Requests rejected", "requests.rejected", None, number4),
    Row("Preemptions", "preemptions", "less", number4),
)
_WINDOWS = {
    "queue_never_empty": "in which the queue was never empty",
    "concurrency_held": "at full concurrency",
    "arrivals": "from first to last arrival",
    "whole_run": "in all",
}


def cards(runs: Sequence[Shown]) -> Markup:
    """Each Run's four numbers in large."""
    return tag("div", *map(_card, runs), class_="cards")


def comparison(runs: Sequence[Shown]) -> Markup:
    """All numbers, with their ratio to the first Run's."""
    rows = []
    for row in ROWS:
        values = [each.number_at(row.path) for each in runs]
        if all(each is None for each in values):
            continue
        cells = [_cell(row, each, found) for each, found in zip(runs, values, strict=True)]
        ratios = [_ratio(row, runs[0], each, found) for each, found in zip(runs[1:], values[1:], strict=True)]
        rows.append((row.title, *map(joined, zip(cells, ["", *ratios], strict=True))))
    header = ["", *(joined((swatch(each), " ", each.name, " ", badge(each))) for each in runs)]
    words = ["Whole run" if all(each.window.fell_back for each in runs) else "Steady window"]
    if len(runs) > 1:
        words.append(f"ratios are to {runs[0].name}")
    if any(each.measured for each in runs):
        words.append(f"in brackets, {CONFIDENCE:.0%} intervals of what was measured, where it tells")
    return table("; ".join(words), header, rows, "numbers")


def badge(each: Shown) -> Markup:
    """Whether its numbers were modelled or measured, and whether it came to its end."""
    marks = [tag("span", each.backend, class_=f"badge {each.backend}")]
    if each.unfinished:
        marks.append(tag("span", f"partial: {each.unfinished:,} requests unfinished", class_="badge partial"))
    return joined(marks)


def swatch(each: Shown) -> Markup:
    return tag("span", class_=f"swatch {each.dash}", style=f"--series:{each.colour}", aria_hidden="true")


def window_words(each: Shown) -> str:
    window = each.window
    return f"over {window.end_s - window.start_s:,.1f} s {_WINDOWS.get(window.kind, window.kind)}"


def _card(each: Shown) -> Markup:
    facts = (
        ("tokens/s", "throughput_tokens_per_s", number4),
        ("ms TBT p99", "tbt_ms.p99", number4),
        (f"of tokens within {each.slo.tbt_ms:g} ms", "slo.token_attainment", share),
        ("$ a million tokens", "cost.usd_per_million_tokens", number4),
    )
    lines = (
        tag("div", tag("dt", unit), tag("dd", exactly(found := each.number_at(path), written(found))))
        for unit, path, written in facts
    )
    model, trace = each.manifest.model_name, each.manifest.trace.name
    what = tag("p", f"{model} on {trace}, {each.manifest.workload.mode}; {window_words(each)}")
    head = tag("h3", swatch(each), " ", each.name, " ", badge(each))
    return tag("article", head, tag("dl", *lines), what, class_="card", style=f"--series:{each.colour}")


def _cell(row: Row, each: Shown, found: float | None) -> Markup:
    """The number4, and of a measured one how far from it the truth may be."""
    cell = tag("span", exactly(found, row.written(found)), class_="value")
    if row.metric is None or not each.measured:
        return cell
    return joined((cell, _interval(row.metric.interval(_estimate(row.metric, each)), row.written)))


def _ratio(row: Row, first: Shown, each: Shown, found: float | None) -> Markup:
    base = first.number_at(row.path)
    if found is None or not base:
        return joined(())
    # Three digits are what is shown: a difference that they do not show is none.
    against, verdict = found / base, ""
    written = _times(against)
    estimate = Estimate(against)
    if first.measured or each.measured:
        pair = (
            (_estimate(row.metric, each), _estimate(row.metric, first)) if row.metric else (UNKNOWN, UNKNOWN)
        )
        estimate = ratio(*pair)
    interval = estimate.interval
    # Of what was measured, only a difference that is not chance may be called one.
    sure = estimate.exact or (interval is not None and not interval.low <= 1 <= interval.high)
    if row.better and sure and written != _times(1):
        verdict = "better" if (against > 1) == (row.better == "more") else "worse"
    spoken = tag("span", f" ({verdict})", class_="spoken") if verdict else ""
    shown = tag("span", written, spoken, class_=f"ratio {verdict}".strip())
    return joined((" ", shown, _interval(interval, _times)))


def _estimate(metric: Metric, each: Shown) -> Estimate:
    return each.recorded.estimates[metric.name]


def _interval(found: Interval | None, written: Callable[[float | None], str]) -> Markup:
    if found is None:
        return joined(())
    return tag("span", f" [{written(found.low)} to {written(found.high)}]", class_="interval")


def _times(ratio: float | None) -> str:
    return f"{ratio:.3g}{TIMES}"
