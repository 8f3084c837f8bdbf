"""The comparison that the page opens with: one card a Run, then every number beside the first Run's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from laminabench.analysis.estimate import CONFIDENCE, UNKNOWN, Estimate, Interval, ratio
from laminabench.analysis.metrics_table import METRICS, SUMMARISED, Metric
from laminabench.render.format import number4, share
from laminabench.render.html import Markup, exactly, joined, table, tag
from laminabench.render.sheets.replay import WINDOWS
from laminabench.render.shown import Shown

TIMES = "\N{MULTIPLICATION SIGN}"


# What `laminabench compare` has, then the report's own.
ROWS = (*SUMMARISED, *(metric for metric in METRICS if metric.in_report))


def cards(runs: Sequence[Shown]) -> Markup:
    """Each Run's four numbers in large."""
    return tag("div", *map(_card, runs), class_="cards")


def comparison(runs: Sequence[Shown]) -> Markup:
    rows = []
    for row in ROWS:
        values = [each.number_at(row.key) for each in runs]
        if all(each is None for each in values):
            continue
        cells = [_cell(row, each, found) for each, found in zip(runs, values, strict=True)]
        ratios = [_ratio(row, runs[0], each, found) for each, found in zip(runs[1:], values[1:], strict=True)]
        rows.append(
            (row.title[0].upper() + row.title[1:], *map(joined, zip(cells, ["", *ratios], strict=True)))
        )
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
    return f"over {window.end_s - window.start_s:,.1f} s {WINDOWS[window.kind]}"


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


def _cell(row: Metric, each: Shown, found: float | None) -> Markup:
    """The number, and of a measured one how far from it the truth may be."""
    written = share if row.is_share else number4
    cell = tag("span", exactly(found, written(found)), class_="value")
    if not row.name or not each.measured:
        return cell
    return joined((cell, _interval(row.interval(each.recorded.estimates[row.name]), written)))


def _ratio(row: Metric, first: Shown, each: Shown, found: float | None) -> Markup:
    base = first.number_at(row.key)
    if found is None or not base:
        return joined(())
    # Three digits are what is shown: a difference that they do not show is none.
    against, verdict = found / base, ""
    written = _times(against)
    estimate = Estimate(against)
    if first.measured or each.measured:
        known = (run.recorded.estimates[row.name] if row.name else UNKNOWN for run in (each, first))
        estimate = ratio(*known)
    interval = estimate.interval
    # Of what was measured, only a difference that is not chance may be called one.
    sure = estimate.exact or (interval is not None and not interval.low <= 1 <= interval.high)
    # Of how many requests came to which end, neither more nor fewer tells which Run is better.
    sense = None if row.key.startswith("requests.") else row.better
    if sense and sure and written != _times(1):
        verdict = "better" if (against > 1) == (sense == "more") else "worse"
    spoken = tag("span", f" ({verdict})", class_="spoken") if verdict else ""
    shown = tag("span", written, spoken, class_=f"ratio {verdict}".strip())
    return joined((" ", shown, _interval(interval, _times)))


def _interval(found: Interval | None, written: Callable[[float | None], str]) -> Markup:
    if found is None:
        return joined(())
    return tag("span", f" [{written(found.low)} to {written(found.high)}]", class_="interval")


def _times(ratio: float | None) -> str:
    return f"{ratio:.3g}{TIMES}"
