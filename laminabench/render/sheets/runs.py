"""The comparison that the page opens with: one card a Run, then every number beside the first Run's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from laminabench.analysis.estimate import CONFIDENCE, Estimate, ratio
from laminabench.analysis.metrics_table import BOARDS, METRICS, SUMMARISED, Metric
from laminabench.render.format import number4, share
from laminabench.render.forms import tiles
from laminabench.render.html import Markup, exactly, joined, sheet_table, tag
from laminabench.render.sheets.compare import metric_sheet
from laminabench.render.sheets.replay import WINDOWS
from laminabench.render.shown import Shown
from laminabench.workflows.compare.sides import Row

# What `laminabench compare` has, then the report's own.
ROWS = (*SUMMARISED, *(metric for metric in METRICS if metric.in_report), *BOARDS)


def cards(runs: Sequence[Shown]) -> Markup:
    """Each Run's four numbers in large."""
    return tag("div", *map(_card, runs), class_="cards")


def comparison(runs: Sequence[Shown]) -> Markup:
    """Return every number beside the first Run's."""
    words = ["Whole run" if all(each.window.fell_back for each in runs) else "Steady window"]
    if len(runs) > 1:
        words.append(f"ratios are to {runs[0].name}")
    if any(each.measured for each in runs):
        words.append(f"in brackets, {CONFIDENCE:.0%} intervals of what was measured, where it tells")
    sheet = metric_sheet("; ".join(words), [each.name for each in runs], _rows(runs), 0)
    heads = [joined((swatch(each), " ", each.name, " ", badge(each))) for each in runs]
    beside = [head for other in heads[1:] for head in (other, "over the first")]
    return sheet_table(sheet, head=["", heads[0], *beside])


def _rows(runs: Sequence[Shown]) -> Iterator[Row]:
    for metric in ROWS:
        values = tuple(_estimate(metric, each) for each in runs)
        if any(each.value is not None for each in values):
            yield Row(metric, values, tuple(ratio(each, values[0]) for each in values))


def _estimate(metric: Metric, each: Shown) -> Estimate:
    """Return the number, and of a measured one how sure it is."""
    value = each.number_at(metric.key)
    if not each.measured:
        return Estimate(value)
    if not metric.name:
        return Estimate(value, None)
    return replace(each.recorded.estimates[metric.name], value=value)


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
    lines = ((unit, exactly(found := each.number_at(path), written(found))) for unit, path, written in facts)
    model, trace = each.manifest.model_name, each.manifest.trace.name
    what = tag("p", f"{model} on {trace}, {each.manifest.workload.mode}; {window_words(each)}")
    head = tag("h3", swatch(each), " ", each.name, " ", badge(each))
    return tag("article", head, tiles(lines), what, class_="card", style=f"--series:{each.colour}")
