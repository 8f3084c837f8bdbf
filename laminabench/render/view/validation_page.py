"""The page of a validation: how far off the model is, of what was recorded, printed, and measured here."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import QueryParams

from laminabench.render.charts.chart import Chart
from laminabench.render.charts.validation import published_chart, recorded_charts, serving_chart, twin_charts
from laminabench.render.html import Markup, exactly, joined, table, tag
from laminabench.render.sheets.validate import NAMES
from laminabench.render.view.folder import Found
from laminabench.render.view.page import Page
from laminabench.workflows.validate.emulated import METRICS
from laminabench.workflows.validate.kept import (
    KeptAgreement,
    KeptErrors,
    KeptPublished,
    KeptRecorded,
    KeptServing,
    KeptTwin,
    read_validation,
)
from laminabench.workflows.validate.published import TARGET
from laminabench.workflows.validate.recorded import AS_MEASURED, POINTS
from laminabench.workflows.validate.twin import METRICS as TWIN_METRICS


def page(found: Found, query: QueryParams) -> Page:  # noqa: ARG001 - there is nothing to choose
    """Each kind that was validated; all numbers are errors in percent unless they say otherwise."""
    kept = read_validation(found.path)
    charts: list[Chart] = []
    sections: list[Markup] = []

    def section(title: str, drawn: Sequence[Chart], *rest: object) -> None:
        charts.extend(drawn)
        grid = tag("div", *(chart.html() for chart in drawn), class_="charts")
        sections.append(tag("section", tag("h2", title), grid, *rest))

    if kept.recorded:
        section("Recorded runs", list(recorded_charts(kept.recorded)), _recorded(kept.recorded))
    if kept.published:
        section("Published numbers", [published_chart(kept.published)], _published(kept.published))
    if kept.serving is not None:
        drawn = [serving_chart(kept.serving.groups, metric) for metric in ("tpot", "ttft")]
        section("Servers under load", drawn, *_serving(kept.serving))
    if kept.twin:
        section("Twins: live replays of this machine", list(twin_charts(kept.twin)), _twins(kept.twin))
    if kept.emulated:
        section("The engine on emulated devices", [], _emulated(kept.emulated))
    about = tag(
        "p",
        tag("span", "modelled", class_="badge"),
        " beside ",
        tag("span", "measured", class_="badge measured"),
        ": predicted / measured - 1, in percent. Nothing in a cost set is fitted to what it is held against.",
        class_="kinds",
    )
    command = tag("pre", kept.command, tabindex="0") if kept.command else ""
    provenance = tag("section", tag("h2", "Provenance"), command) if command else ""
    return Page(f"Validation {found.path.name}", joined((about, *sections, provenance)), charts)


def _percent(value: float | None, *, sign: bool = True) -> Markup:
    return exactly(value, "-" if value is None else f"{value:+.1f}" if sign else f"{value:.1f}")


def _verdict(*, missed: bool) -> Markup:
    return tag("span", "missed" if missed else "met", class_="ratio worse" if missed else "ratio better")


def _recorded(found: Sequence[KeptRecorded]) -> Markup:
    header = (
        "recording",
        "costs",
        "TTFT",
        "latency",
        "TPOT",
        *(f"TPOT {p}" for p in POINTS),
        "by request",
        "",
    )
    rows: list[list[object]] = []
    for each in found:
        errors = each.errors_percent
        own = each.constants == AS_MEASURED
        name = (
            each.recording if own else f"{each.recording}, {each.gap_ms:.2f} ms a step from {each.constants}"
        )
        means = (errors[metric]["mean"] for metric in ("ttft", "latency", "tpot"))
        numbers = [*means, *(errors["tpot"][point] for point in POINTS)]
        by_request = _percent(errors["latency"].get("by_request"), sign=False)
        rows.append(
            [name, each.costs, *map(_percent, numbers), by_request, _verdict(missed=bool(each.missed))]
        )
        for simulator, theirs in each.others.items() if own else ():
            told = [theirs.get("ttft", [None])[0], theirs.get("latency", [None])[0], *theirs.get("tpot", [])]
            told += [None] * (len(numbers) - len(told))
            rows.append([f"{each.recording}, by {simulator}", "", *map(_percent, told), "", ""])
    return table(
        f"Errors of means ({', '.join(NAMES.values())}) and of TPOT's percentiles, %", header, rows, "numbers"
    )


def _published(found: Sequence[KeptPublished]) -> Markup:
    rows = (
        (
            each.model,
            each.deployment,
            each.costs,
            exactly(each.measured_ms, f"{each.measured_ms:,.1f}"),
            exactly(each.predicted_ms, "-" if each.predicted_ms is None else f"{each.predicted_ms:,.1f}"),
            _percent(each.error_percent),
            each.why_not or _verdict(missed=abs(each.error_percent or 0.0) > TARGET),
        )
        for each in found
    )
    header = ("model", "deployment", "costs", "printed, ms", "modelled, ms", "error, %", "")
    return table("Mean latency", header, rows, "numbers errors")


def _serving(found: KeptServing) -> list[Markup]:
    def numbers(errors: KeptErrors | None) -> list[Markup]:
        if errors is None:
            return [_percent(None)] * 3
        return [_percent(errors.median, sign=False), _percent(errors.mean), _percent(errors.worst)]

    rows = (
        (
            f"{group.device.upper()} {group.what}{' (known to be off)' if group.off else ''}",
            ", ".join(group.versions),
            f"{group.errors['tpot'].points:,}" if "tpot" in group.errors else "-",
            *numbers(group.errors.get("tpot")),
            *numbers(group.errors.get("ttft")),
            "" if group.target is None else f"{group.target:g}",
            "" if group.target is None else _verdict(missed=group.missed),
        )
        for group in found.groups
    )
    header = (
        *("servers", "vLLM", "loads", "TPOT median", "mean", "worst", "TTFT median", "mean", "worst"),
        *("target of TPOT", ""),
    )
    shown = table("Median of absolute errors, mean and worst error, %", header, rows, "numbers errors")
    why = dict.fromkeys(group.off for group in found.groups if group.off)
    notes = tag("ul", *(tag("li", f"Known to be off: {reason}") for reason in why), class_="notes")
    return [shown, notes if why else joined(())]


def _twins(found: Sequence[KeptTwin]) -> Markup:
    metrics = [metric for metric in TWIN_METRICS if any(metric in each.errors_percent for each in found)]
    rows = (
        (
            f"{each.load}: {each.deployment}",
            *(cell for metric in metrics for cell in _of_twin(each, metric)),
            _verdict(missed=bool(each.missed)),
        )
        for each in found
    )
    header = ("twin", *(title for metric in metrics for title in (f"{metric}, measured", "error, %")), "")
    return table("Measured here, and how far off the model is", header, rows, "numbers errors")


def _emulated(found: Sequence[KeptAgreement]) -> Markup:
    header = ("replay", *(title for metric in METRICS for title in (f"{metric}, emulated", "off, %")), "")
    rows = (
        (
            each.replay,
            *(cell for metric in METRICS for cell in _of_agreement(each, metric)),
            _verdict(missed=bool(each.missed)),
        )
        for each in found
    )
    return table("Emulated, and how far from modelled with the same host", header, rows, "numbers errors")


def _of_agreement(each: KeptAgreement, metric: str) -> tuple[object, object]:
    value = each.emulated.get(metric)
    return exactly(value, "-" if value is None else f"{value:,.4g}"), _percent(
        each.differences_percent.get(metric)
    )


def _of_twin(each: KeptTwin, metric: str) -> tuple[object, object]:
    estimate = each.measured.get(metric)
    if estimate is None or estimate.value is None:
        return "-", "-"
    low_high = estimate.interval
    between = f" {low_high[0]:,.4g} to {low_high[1]:,.4g}" if low_high else ""
    measured = (exactly(estimate.value, f"{estimate.value:,.4g}"), tag("span", between, class_="interval"))
    return joined(measured), _percent(each.errors_percent.get(metric))
