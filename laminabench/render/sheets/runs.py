"""Tables of Runs: a card each, all numbers against the first Run's, and their provenance."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from laminabench.analysis.estimate import CONFIDENCE, Estimate, ratio
from laminabench.analysis.metrics_table import BOARDS, METRICS, SUMMARISED, Metric
from laminabench.catalog.deployment import DeploymentFacts
from laminabench.render.format import number4, plain, share
from laminabench.render.forms import tiles
from laminabench.render.html import Markup, exactly, joined, sheet_table, table, tag
from laminabench.render.model import Cell, Sheet
from laminabench.render.sheets.compare import metric_sheet
from laminabench.render.sheets.replay import WINDOWS
from laminabench.render.shown import Shown
from laminabench.runs.summary import ClientSummary
from laminabench.util.json import JsonObject, to_json
from laminabench.workflows.compare.sides import Row

# The metrics of `laminabench compare`, then the report's own.
ROWS = (*SUMMARISED, *(metric for metric in METRICS if metric.in_report), *BOARDS)


def cards(runs: Sequence[Shown]) -> Markup:
    """Return four large numbers for each Run."""
    return tag("div", *map(_card, runs), class_="cards")


def comparison(runs: Sequence[Shown]) -> Markup:
    """Return every number, with ratios to the first Run's."""
    words = ["Whole run" if all(each.window.fell_back for each in runs) else "Steady window"]
    if len(runs) > 1:
        words.append(f"ratios are to {runs[0].name}")
    if any(each.measured for each in runs):
        words.append(f"in brackets, {CONFIDENCE:.0%} intervals of what was measured, where it tells")
    sheet = metric_sheet("; ".join(words), [each.name for each in runs], _rows(runs), 0)
    heads = [joined((swatch(each), " ", each.name, " ", badge(each))) for each in runs]
    others = [head for other in heads[1:] for head in (other, "over the first")]
    return sheet_table(sheet, head=["", heads[0], *others])


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
    """Return a mark of modelled or measured numbers, and of a Run that ended early."""
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
    lines = ((unit, exactly(value := each.number_at(path), written(value))) for unit, path, written in facts)
    model, trace = each.manifest.model_name, each.manifest.trace.name
    what = tag("p", f"{model} on {trace}, {each.manifest.workload.mode}; {window_words(each)}")
    head = tag("h3", swatch(each), " ", each.name, " ", badge(each))
    return tag("article", head, tiles(lines), what, class_="card", style=f"--series:{each.colour}")


# Metrics that only a client can measure.
_TIMES = (
    ("Sent to first chunk (TTFT), ms", "ttft_ms"),
    ("Between two chunks (ITL), ms", "itl_ms"),
    ("Between two tokens (TBT), ms", "tbt_ms"),
    ("Sent to last chunk, ms", "e2e_ms"),
    ("Sent after it was due, ms", "lateness_ms"),
)
_POINTS = ("mean", "p50", "p90", "p99", "p99.9", "max")
_ATTEMPTS = ("sent", "retried", "failed")
# A page shows the first deviating answers only; run.json has all.
_MOST_ERRORS = 20


def client_sheets(runs: Sequence[Shown]) -> list[Sheet]:
    """Return two for each Run whose requests only a client observed."""
    return [sheet for each in runs if each.client_only for sheet in (_times(each), _calls(each))]


def _times(each: Shown) -> Sheet:
    values = {title: [each.number_at(f"{key}.{point}") for point in _POINTS] for title, key in _TIMES}
    rows: list[list[str | Cell]] = [
        [title, *(Cell(number4(value), value) for value in points)]
        for title, points in values.items()
        if any(value is not None for value in points)
    ]
    return Sheet(f"Times of {each.name}", ("", *(f">{point}" for point in _POINTS)), rows)


def _calls(each: Shown) -> Sheet:
    assert isinstance(each.summary, ClientSummary)
    attempts = each.summary.attempts
    mean, most = (number4(each.number_at(f"tokens_per_chunk.{key}")) for key in ("mean", "max"))
    evenly = share(each.number_at("tokens_per_chunk.even_share"))
    sent, retried, failed = (number4(each.number_at(f"attempts.{key}")) for key in _ATTEMPTS)
    errors = list(attempts.by_error.items())[:_MOST_ERRORS]
    rows = [
        ("Tokens a chunk, mean and most", f"{mean}, {most}"),
        ("Tokens split evenly, as the server did not say", evenly),
        ("Attempts", sent),
        ("of these, again", retried),
        ("Requests that failed", failed),
        *((f"failed: {why}", number4(times)) for why, times in errors),
    ]
    return Sheet(f"Calls of {each.name}", ("", ""), rows)


_ABOUT = {"term", "device", "set", "kind", "source"}


def provenance(each: Shown) -> Markup:
    manifest, document = each.manifest, to_json(each.manifest)
    sections = (
        *((title, table(title, ("", ""), _facts(facts))) for title, facts in (
            ("Trace", to_json(manifest.trace)),
            ("Changes to the trace", manifest.transforms),
            ("Workload and options", {**to_json(manifest.workload), "options": manifest.choices}),
        )),
        ("Deployment and prices", joined(_deployment(manifest.deployment))),
        ("Model", table("Model", ("", ""), _facts(manifest.model))),
        (f"Coefficients ({len(manifest.coefficients)})", _coefficients(manifest.coefficients, each)),
        ("Host", table("Host", ("", ""), _facts(to_json(manifest.host)))),
        ("run.json, whole", tag("pre", json.dumps(document, indent=1, ensure_ascii=False), tabindex="0")),
    )  # fmt: skip
    opening = [tag("details", tag("summary", title), inside) for title, inside in sections]
    return tag("article", tag("h3", swatch(each), " ", each.name, " ", badge(each)), _origin(each), *opening)


def _origin(each: Shown) -> Markup:
    manifest = each.manifest
    ours, trace = manifest.laminabench, manifest.trace
    facts = {
        "command": tag("code", manifest.command),
        "laminabench": f"{ours.version}, commit {ours.commit or 'not known'}",
        "trace": f"{trace.name}, sha256 {trace.sha256}",
        "requests": f"{trace.requests or len(each.run.output_tokens):,}",
        "seed": plain(manifest.seed),
        "replayed in": f"{manifest.wall_s or 0:,.2f} s",
        "folder": str(each.run.directory),
    }
    return table(f"Origin of {each.name}", ("", ""), facts.items())


def _deployment(deployment: DeploymentFacts) -> Iterator[Markup]:
    header = ("Device", "Count", "$ an hour each", "Basis", "Source", "Date")
    rows = []
    for device in deployment.devices or ():
        price = to_json(device.price) if device.price else {}
        more = (plain(price.get(name)) for name in ("usd", "basis", "source", "date"))
        rows.append((device.device, device.count, *more))
    yield table("Devices and prices", header, rows)
    rest = {name: fact for name, fact in to_json(deployment).items() if name != "devices"}
    yield table("Deployment", ("", ""), _facts(rest))


def _coefficients(terms: Sequence[JsonObject], each: Shown) -> Markup:
    if not terms:
        return tag(
            "p", "None: nothing was computed from coefficients." if each.measured else "None recorded."
        )
    header = ("Term", "Device", "Set", "Kind", "Source", "Values", "Range and errors")
    rows = []
    for term in terms:
        own = term.get("coefficients")
        values = dict(own) if isinstance(own, Mapping) else {}
        rest = {name: fact for name, fact in term.items() if name not in _ABOUT | {"coefficients"}}
        # A network's numbers are next to its name, not among coefficients.
        if not values:
            values, rest = rest, {}
        about = (plain(term.get(name)) for name in ("term", "device", "set", "kind", "source"))
        rows.append((*about, _lines(values), _lines(rest)))
    return table("Coefficients, each with its source", header, rows, "coefficients")


def _lines(facts: JsonObject) -> Markup:
    return joined(tag("div", f"{path}: {fact}") for path, fact in _facts(facts) if fact)


def _facts(facts: JsonObject, within: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested facts as lines, with dotted names."""
    for name, fact in facts.items():
        path = f"{within}{name}".replace("_", " ")
        if isinstance(fact, Mapping):
            yield from _facts(fact, f"{path}: ")
        else:
            yield path, plain(fact)
