"""Tables of a validation: predictions against measurements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from laminabench.catalog.accuracy import Accuracy
from laminabench.render.format import number, share
from laminabench.render.model import Cell, Row, Sheet, verdict
from laminabench.workflows.validate import emulated, twin
from laminabench.workflows.validate.gate import Moved
from laminabench.workflows.validate.published import MEAN_TARGET, TARGET
from laminabench.workflows.validate.recorded import AS_MEASURED, POINTS, TARGETS, TPOT_POINTS
from laminabench.workflows.validate.serving import SOUND
from laminabench.workflows.validate.stored import (
    StoredAgreement,
    StoredErrors,
    StoredPublished,
    StoredRecorded,
    StoredServing,
    StoredStanding,
    StoredTwin,
    StoredUnpriced,
    StoredValidation,
)

_NO_ERRORS = StoredErrors(points=0, median=None, mean=None, worst=None)
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency"}


def sheets_of(validation: StoredValidation) -> Iterator[Sheet]:
    """Yield the accuracy board, and a table for each kind that was validated."""
    if validation.board:
        yield board_sheet(validation.board)
    if validation.recorded:
        yield recorded_sheet(validation.recorded)
    if validation.published:
        yield published_sheet(validation.published)
    if validation.serving is not None:
        yield serving_sheet(validation.serving)
        if validation.serving.standings:
            yield standings_sheet(validation.serving.standings)
        if validation.serving.unpriced:
            yield unpriced_sheet(validation.serving.unpriced)
        if again := validation.serving.refit:
            times = ", ".join(f"{name} {value:g}" for name, value in again.constants_ms.items())
            factors = ", ".join(f"{name} {value:.2f}" for name, value in again.factors.items())
            note = f"fitted to {again.loads} loads on {again.device}, in ms: {times}; factors: {factors}"
            yield standings_sheet(again.standings, note)
    if validation.twin:
        yield twin_sheet(validation.twin, same_order=validation.twin_same_order)
    if validation.emulated:
        yield emulated_sheet(validation.emulated)


def board_sheet(cells: Sequence[Accuracy]) -> Sheet:
    """Return a row a system, device, model and metric."""
    columns = (
        "system",
        "device",
        "model",
        "metric",
        ">loads",
        ">median",
        ">signed",
        ">p90",
        "cost set",
        "measured",
    )
    rows: list[Row] = [
        [
            *(each.system, each.device, each.model, each.metric, str(each.loads)),
            *(_percent(each.median, sign=False), _percent(each.signed), _percent(each.p90, sign=False)),
            *(each.costs, each.measured),
        ]
        for each in cells
    ]
    fitted: dict[tuple[str, str], list[str]] = {}
    for each in cells:
        if each.fitted:
            fitted.setdefault((each.against, each.fitted), []).append(each.metric)
    notes = ["loads that constants were fitted to, or that are known to be off, are in no row"]
    notes += [
        f"constants fitted for {'; '.join(dict.fromkeys(metrics))} of {against}: {what}"
        for (against, what), metrics in fitted.items()
    ]
    title = "accuracy board: medians of absolute and of signed errors, and p90 of absolute ones, in percent"
    return Sheet(title, columns, rows, notes)


def recorded_sheet(predictions: Sequence[StoredRecorded]) -> Sheet:
    """Return a row a prediction: errors of means, of TPOT's percentiles, and of a request's latency."""
    columns = ("recorded", ">TTFT", ">latency", ">TPOT", *(f">{p}" for p in POINTS), ">by request", "")
    rows: list[Row] = []
    for each in predictions:
        errors, own = each.errors_percent, each.constants == AS_MEASURED
        name = each.recording if own else f"  with {each.gap_ms:.2f} ms a step, from {each.constants}"
        means = [errors[metric]["mean"] for metric in ("ttft", "latency", "tpot")]
        numbers = [*means, *(errors["tpot"][point] for point in POINTS)]
        by_request = _percent(errors["latency"].get("by_request"), sign=False)
        rows.append([name, *map(_percent, numbers), by_request, verdict(missed=each.missed)])
        for simulator, theirs in each.others.items() if own else ():
            known = [*theirs.get("ttft", [])[:1], *theirs.get("latency", [])[:1], *theirs.get("tpot", [])]
            padding = [""] * (len(columns) - 1 - len(known))
            rows.append([Cell(f"  by {simulator}", tone="quiet"), *map(_percent, known), *padding])
    limits = ", ".join(f"{NAMES[name]} {limit:g}" for name, limit in TARGETS.items())
    note = f"targets: {limits}, TPOT's percentiles {TPOT_POINTS:g} %"
    return Sheet("predicted / measured - 1, in percent", columns, rows, [note])


def published_sheet(numbers: Sequence[StoredPublished]) -> Sheet:
    """Return a row a published number."""
    columns = ("model", "deployment", "costs", ">printed ms", ">modelled ms", ">error %", "")
    rows = [
        (
            *(row.model, row.deployment, row.costs),
            Cell(f"{row.measured_ms:,.1f}", row.measured_ms),
            Cell("-" if row.predicted_ms is None else f"{row.predicted_ms:,.1f}", row.predicted_ms),
            _percent(row.error_percent),
            row.why_not or verdict(missed=abs(row.error_percent or 0.0) > TARGET),
        )
        for row in numbers
    ]
    errors = [abs(row.error_percent) for row in numbers if row.error_percent is not None]
    mean = sum(errors) / len(errors) if errors else 0.0
    outcome = "missed" if mean > MEAN_TARGET else "met"
    note = f"mean of absolute errors {mean:.1f} %, target {MEAN_TARGET:g} %: {outcome}"
    return Sheet("published", columns, rows, [note])


def serving_sheet(serving: StoredServing) -> Sheet:
    """Return a row a model and device, then all of these; the notes say why some are known to be off."""
    columns = ("servers", "vLLM", ">loads", ">TPOT", ">mean", ">worst", ">TTFT", ">mean", ">target", "")
    reasons = list(dict.fromkeys(group.off for group in serving.groups if group.off))
    rows = []
    for group in serving.groups:
        tpot, ttft = (group.errors.get(metric, _NO_ERRORS) for metric in ("tpot", "ttft"))
        mark = f" ({reasons.index(group.off) + 1})" if group.off else ""
        rows.append(
            (
                f"{group.device} {group.what}{mark}",
                ", ".join(group.versions) if group.what not in ("all", SOUND) else "",
                str(tpot.points),
                *(_percent(tpot.median, sign=False), _percent(tpot.mean), _percent(tpot.worst)),
                *(_percent(ttft.median, sign=False), _percent(ttft.mean)),
                "" if group.target is None else f"{group.target:g}",
                "" if group.target is None else verdict(missed=group.missed),
            )
        )
    notes = [f"({place}) {reason}" for place, reason in enumerate(reasons, 1)]
    title = "median of absolute errors, and predicted / measured - 1, in percent"
    return Sheet(title, columns, rows, notes)


def standings_sheet(standings: Sequence[StoredStanding], fitted: str = "") -> Sheet:
    """Return a row a group of loads by its role: judges first, for which targets are."""
    columns = ("role", "loads of", ">n", ">TTFT", ">signed", ">p90", ">TPOT", ">signed", ">p90", "")
    rows: list[Row] = []
    for each in standings:
        numbers: list[str | Cell] = []
        for errors in (each.ttft, each.tpot):
            numbers += [
                _percent(errors.median, sign=False),
                _percent(errors.signed),
                _percent(errors.p90, sign=False),
            ]
        outcome = f"missed: {', '.join(each.missed)}" if each.missed else "met" if each.targets else ""
        rows.append([each.role, each.group, str(each.loads), *numbers, outcome])
    note = fitted or "judges had no part in any constant; loads that are known to be off are in no group"
    return Sheet(
        "medians of absolute and of signed errors, and p90 of absolute ones, in percent",
        columns,
        rows,
        [note],
    )


def unpriced_sheet(rows: Sequence[StoredUnpriced]) -> Sheet:
    """Return the rows that could not be priced."""
    count = f"{len(rows)} row{'s' * (len(rows) > 1)}"
    return Sheet(
        f"{count} without a prediction, in no group", ("row", "why"), [(each.row, each.why) for each in rows]
    )


def twin_sheet(pairs: Sequence[StoredTwin], *, same_order: bool | None) -> Sheet:
    """Return a row a twin: what was measured, what is modelled, and how far that is off."""
    common, own = _split_flags([each.twin for each in pairs])
    columns = ("twin", *(f">{name}" for name in twin.METRICS), "")
    rows = [
        (
            name,
            *_compared(
                twin.METRICS,
                {metric: estimate.value for metric, estimate in each.measured.items()},
                each.predicted,
                each.errors_percent,
            ),
            verdict(missed=each.missed),
        )
        for each, name in zip(pairs, own, strict=True)
    ]
    order = (
        "" if same_order is None else f"; order of the deployments: {'' if same_order else 'not '}the same"
    )
    return Sheet(
        "measured here (modelled, error)",
        columns,
        rows,
        [*common, f"targets: {_limits(twin.TARGETS)} %{order}"],
    )


def emulated_sheet(pairs: Sequence[StoredAgreement]) -> Sheet:
    """Return a row a replay: the engine on emulated devices, and how far that is from the model."""
    common, own = _split_flags([each.replay for each in pairs])
    titles = (*(f">{name}" for name in emulated.METRICS), ">host ms", ">late", ">assumed host")
    rows = [
        (
            name,
            *_compared(emulated.METRICS, each.emulated, each.modelled, each.differences_percent),
            *(number(each.host_ms), share(each.pace.get("late_share"))),
            number(each.modelled_with_assumed_host.get("tokens/s")),
            Cell(f"missed: {', '.join(each.missed)}", tone="bad") if each.missed else verdict(missed=False),
        )
        for each, name in zip(pairs, own, strict=True)
    ]
    note = (
        f"targets: {_limits(emulated.TARGETS)} %; modelled with the host that was emulated on, in ms an "
        "iteration; assumed host: tokens/s modelled with the cost set's"
    )
    return Sheet(
        "emulated (modelled, emulated / modelled - 1)", ("replay", *titles, ""), rows, [*common, note]
    )


def moved_sheet(changes: Sequence[Moved]) -> Sheet:
    """Return the errors that are not as they were saved."""
    rows = [
        (
            each.what,
            f"{each.was:+.2f}",
            "gone" if each.now is None else f"{each.now:+.2f}",
            Cell("worse", tone="bad") if each.worse else "",
        )
        for each in changes
    ]
    return Sheet("", ("error in percent", ">kept", ">now", ""), rows)


def _compared(
    metrics: Iterable[str],
    measured: Mapping[str, float | None],
    modelled: Mapping[str, float],
    errors: Mapping[str, float],
) -> Iterator[str | Cell]:
    for name in metrics:
        if name in errors:
            more = f"({number(modelled[name])}, {errors[name]:+.1f} %)"
            yield Cell(number(measured[name]), measured[name], more=more)
        else:
            yield "-"


def _split_flags(calls: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a note of the flags that all calls share, and the flags that each has of its own."""
    words = [re.split(r"\s+(?=--)", each) for each in calls]
    common = [word for word in words[0] if all(word in other for other in words)] if len(calls) > 1 else []
    own = [" ".join(word for word in each if word not in common) for each in words]
    return [f"all: {' '.join(common)}"] if common else [], own


def _limits(targets: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {limit:g}" for name, limit in targets.items())


def _percent(value: float | None, *, sign: bool = True) -> Cell:
    return Cell("-" if value is None else f"{value:+.1f}" if sign else f"{value:.1f}", value)
