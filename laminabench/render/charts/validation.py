"""Charts of predictions against measurements: errors as marks, targets as bands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from laminabench.render.charts.chart import Chart, PlotlyJson, axis, label, marks, rounded
from laminabench.render.sheets.validate import NAMES
from laminabench.render.style import BLUE, VERMILION
from laminabench.workflows.validate.published import TARGET
from laminabench.workflows.validate.recorded import AS_MEASURED, POINTS, TPOT_POINTS
from laminabench.workflows.validate.recorded import TARGETS as RECORDED
from laminabench.workflows.validate.stored import StoredGroup, StoredPublished, StoredRecorded, StoredTwin
from laminabench.workflows.validate.twin import TARGETS as TWINS

# Visible on light and on dark.
_QUIET = "#8a929b"
# Height of a row whose name has one line, or two.
_ROW_PX, _TALL_PX, _AROUND_PX = 26, 38, 110


class Error(NamedTuple):
    """The error of one prediction, in percent of the measurement."""

    name: str
    value: float | None
    target: float | None
    low: float | None = None  # end of the measurement's interval
    high: float | None = None
    others: tuple[float, ...] = ()  # other simulators' errors

    @property
    def missed(self) -> bool:
        return self.value is not None and self.target is not None and abs(self.value) > self.target


def error_chart(key: str, title: str, errors: Sequence[Error], note: str, *, absolute: bool = False) -> Chart:
    """Return a row per prediction: its target as a band, its error as a dot, or as a cross if missed."""
    of = "median of absolute errors" if absolute else "predicted / measured - 1"
    row_px = _TALL_PX if any("<br>" in each.name for each in errors) else _ROW_PX
    names = _unique([each.name for each in errors])
    rows = list(zip(names, errors, strict=True))
    traces: list[PlotlyJson] = []
    with_target = [(name, each.target) for name, each in rows if each.target is not None]
    if with_target:
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": "target",
                "y": [name for name, _ in with_target],
                "x": [target if absolute else 2 * target for _, target in with_target],
                "base": [0 if absolute else -target for _, target in with_target],
                "marker": {"color": _QUIET},
                "opacity": 0.28,
                "width": 0.72,
                "hovertemplate": "target: within %{customdata:g} %<extra></extra>",
                "customdata": [target for _, target in with_target],
            }
        )
    for missed, words, colour, symbol in (
        (False, "met" if with_target else "error", BLUE, "circle"),
        (True, "missed", VERMILION, "x"),
    ):
        some = [(name, each) for name, each in rows if each.value is not None and each.missed is missed]
        if some:
            traces.append(_dots(words, some, colour, symbol))
    others = [(name, other) for name, each in rows for other in each.others]
    if others:
        looks = {"symbol": "diamond-open", "size": 9, "color": _QUIET, "line": {"width": 1.5}}
        trace = marks("other simulators", [x for _, x in others], [name for name, _ in others], **looks)
        traces.append({**trace, "hovertemplate": "another simulator: %{x:+.1f} %<extra></extra>"})
    zero: PlotlyJson = {"zeroline": True, "zerolinecolor": _QUIET}
    layout = {
        "xaxis": axis(f"{of}, %", **(zero | ({"rangemode": "tozero"} if absolute else {}))),
        "yaxis": axis("", type="category", autorange="reversed", showgrid=False),
        "hovermode": "closest",
        "barmode": "overlay",
    }
    description = ", ".join(
        f"{name.replace('<br>', ' ')} {each.value:+.1f} %" for name, each in rows if each.value is not None
    )
    return Chart(
        key, title, f"Errors: {description or 'none'}", note, traces, layout, row_px * len(rows) + _AROUND_PX
    )


def _dots(words: str, some: Sequence[tuple[str, Error]], colour: str, symbol: str) -> PlotlyJson:
    values = [each.value or 0.0 for _, each in some]
    trace = marks(words, values, [name for name, _ in some], symbol=symbol, size=10, color=colour)
    trace["hovertemplate"] = "%{y}: %{x:+.1f} %<extra></extra>"
    if any(each.low is not None for _, each in some):
        high = [v if each.high is None else each.high for (_, each), v in zip(some, values, strict=True)]
        low = [v if each.low is None else each.low for (_, each), v in zip(some, values, strict=True)]
        trace["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": rounded(end - v for end, v in zip(high, values, strict=True)),
            "arrayminus": rounded(v - end for end, v in zip(low, values, strict=True)),
            "color": colour,
            "thickness": 1.5,
            "width": 4,
        }
    return trace


def recorded_charts(predictions: Sequence[StoredRecorded]) -> Iterator[Chart]:
    """Yield a chart per prediction: errors of means, then of TPOT's percentiles."""
    for place, each in enumerate(predictions):
        errors = each.errors_percent
        rows = [
            Error(NAMES[name], errors[name]["mean"], RECORDED[name], others=_of_others(each, name, 0))
            for name in ("ttft", "latency", "tpot")
        ]
        rows += [
            Error(f"TPOT {point}", errors["tpot"][point], TPOT_POINTS, others=_of_others(each, "tpot", nth))
            for nth, point in enumerate(POINTS, 1)
        ]
        constants = (
            ""
            if each.constants == AS_MEASURED
            else f", with {each.gap_ms:.2f} ms a step from {each.constants}"
        )
        note = f"Costs {each.costs}{constants}. Bands are the targets; means but for TPOT's percentiles."
        yield error_chart(f"recorded-{place}", f"{each.recording}{constants}", rows, note)


def _of_others(each: StoredRecorded, name: str, place: int) -> tuple[float, ...]:
    """Return other simulators' errors at the same statistic; they use none of our constants."""
    if each.constants != AS_MEASURED:
        return ()
    lists = (errors.get(name, []) for errors in each.others.values())
    return tuple(errors[place] for errors in lists if place < len(errors))


def published_chart(numbers: Sequence[StoredPublished]) -> Chart:
    rows = [
        Error(f"{label(each.model)}<br>{label(each.deployment)}", each.error_percent, TARGET)
        for each in numbers
    ]
    return error_chart("published", "Latencies that vLLM's CI printed", rows, f"Bands: within {TARGET:g} %.")


def serving_chart(groups: Sequence[StoredGroup], metric: str) -> Chart:
    """Return medians of absolute errors, so that bands begin at zero."""
    rows = [
        Error(
            f"{label(group.what)}<br>{label(group.device.upper())}",
            group.errors[metric].median,
            group.target if metric == "tpot" else None,
        )
        for group in groups
        if not group.off and metric in group.errors
    ]
    title = f"{metric.upper()} of servers under load"
    note = "The median of absolute errors of all loads. Those that are known to be off are in the table."
    return error_chart(f"serving-{metric}", title, rows, note, absolute=True)


def twin_charts(pairs: Sequence[StoredTwin]) -> Iterator[Chart]:
    """Yield a chart for each metric."""
    for place, (metric, target) in enumerate(TWINS.items()):
        rows = [_twin(each, metric, target) for each in pairs if metric in each.errors_percent]
        if rows:
            note = f"Bars: what rounds of measuring leave open. Bands: within {target:g} %."
            yield error_chart(f"twin-{place}", f"{metric}, live and modelled", rows, note)


def _twin(each: StoredTwin, metric: str, target: float) -> Error:
    error, measured = each.errors_percent[metric], each.measured[metric]
    name = f"{label(each.load)}<br>{label(each.deployment)}"
    if measured.interval is None or not all(measured.interval):
        return Error(name, error, target)
    ends = sorted(100 * (each.predicted[metric] / end - 1) for end in measured.interval)
    return Error(name, error, target, ends[0], ends[1])


def _unique(names: Sequence[str]) -> list[str]:
    """Number repeated names, which a category axis would merge."""
    counts: dict[str, int] = {}
    unique = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        unique.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return unique
