"""`lb.compare`: Runs side by side, or systems on the same requests, as in `laminabench compare`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from msgspec import structs

from laminabench.api.comparison import Comparison
from laminabench.api.keywords import request_of
from laminabench.api.messages import MessageLog
from laminabench.api.replay import named
from laminabench.api.run import Run, read
from laminabench.render.sheets.compare import sheet_of_runs, sheets_of_systems
from laminabench.requests.compare import TRACES, CompareRequest
from laminabench.runs.read import Run as Table
from laminabench.traces.resolve import cut, transforms_of
from laminabench.util.errors import UserError
from laminabench.workflows.compare.recorded import of_run
from laminabench.workflows.compare.rounds import compare_recorded
from laminabench.workflows.compare.sides import SideBySide
from laminabench.workflows.compare.systems import Compared, compare_systems
from laminabench.workflows.replay.run import load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from laminabench.api.keyword_types import CompareKeywords
    from laminabench.api.replay import TraceLike

RunLike = Run | str | os.PathLike[str]


@overload
def compare(
    *runs: RunLike,
    base: int = ...,
    slo_tbt_ms: float | None = ...,
    slo_ttft_ms: float | None = ...,
    group: bool = ...,
) -> Comparison: ...


@overload
def compare(
    *,
    trace: TraceLike | Sequence[str | os.PathLike[str]],
    jobs: int | None = ...,
    progress: bool = ...,
    **keywords: Unpack[CompareKeywords],
) -> Comparison: ...


def compare(*runs: RunLike, **keywords: Any) -> Comparison:
    """Compare Runs side by side, or systems replayed on the same requests.

    With Runs (or their folders): the first is what ratios are to, unless `base` is another's place. Runs of
    one live thing are taken as rounds of it, unless `group` is false; `slo_tbt_ms` holds all to one limit.

    With one `trace` and one `model`: each system on the cheapest deployment within the limits, as a plan
    chooses it, at the trace's arrivals and saturated. With `systems`, `deployments` or `equal_cost`, or with
    several traces or models: every system is replayed, modelled, on every trace with every model and cost set
    or era, at about the same price with `equal_cost`. The keywords are the flags of `laminabench compare`; of
    `deployments`, `hosts` and `max_num_seqs` by system, as `deployments={"lamina": "2xh200+4xh20"}`.

    Examples:
        >>> import laminabench as lb
        >>> lamina = lb.replay("profile:azure-conv", system="lamina", num_requests=200)
        >>> vllm = lb.replay("profile:azure-conv", system="vllm", num_requests=200)
        >>> lb.compare(lamina, vllm).ratio("tbt_p99").value < 1
        True
        >>> few = {"trace": "profile:azure-conv", "num_requests": 200, "model": "llama3-70b"}
        >>> both = lb.compare(**few, costs="vllm-0.14", equal_cost=True, jobs=1)
        >>> sorted(both.ratios.index.get_level_values("side"))
        ['lamina', 'vllm']
    """
    return _compare_runs(*runs, **keywords) if runs else _compare_systems(**keywords)


def _compare_runs(
    *given: RunLike,
    base: int = 0,
    slo_tbt_ms: float | None = None,
    slo_ttft_ms: float | None = None,
    group: bool = True,
) -> Comparison:
    if len(given) < 2:
        raise UserError("compare-too-few", "one Run cannot be compared; give at least two")
    if not 0 <= base < len(given):
        raise UserError("compare-base-unknown", f"base is the place of a Run, 0 to {len(given) - 1}")
    runs = [each if isinstance(each, Run) else read(each) for each in given]
    # A Run in memory only is identified by its position.
    tables = [each.table(f"#{place}") for place, each in enumerate(runs, 1)]
    places = [each.path.resolve() if each.path else id(each) for each in runs]
    if len(set(places)) < len(places):
        raise UserError("compare-run-twice", "a Run is given twice; a Run is compared with other Runs")
    recorded = [of_run(each, slo_tbt_ms, slo_ttft_ms) for each in tables]
    compared, notes = compare_recorded(recorded, base=recorded[base].path, group=group)
    if len(compared.sides) < 2:
        raise UserError(
            "compare-too-few",
            "these Runs are rounds of one deployment, and cannot be compared; group=False separates them",
        )
    manifest = tables[base].manifest
    cell = (manifest.model_name, manifest.trace.name, str(manifest.choices.get("costs", "")))
    return comparison_of_runs(compared, notes, lambda: tables, cell)


def comparison_of_runs(
    compared: SideBySide,
    notes: Sequence[str],
    runs: Callable[[], list[Table]],
    cell: tuple[str, str, str] = ("", "", ""),
) -> Comparison:
    """Return Runs side by side as a comparison; `cell` is their model, trace and costs."""

    def figure() -> Figure:
        from laminabench.render.static.pictures import comparison_picture

        return comparison_picture(compared)

    names = [side.label for side in compared.sides]
    return Comparison(
        title=f"{', '.join(names)}: ratios are to {names[compared.base]}",
        verdict=None,
        verdicts=(),
        includes="",
        notes=tuple(notes),
        sides=(compared,),
        _cells=(cell,),
        _where=("",),
        _sheets=(sheet_of_runs(compared),),
        _figure=figure,
        _runs=runs,
        _described={**compared.describe(), "notes": list(notes)},
    )


def _compare_systems(
    *,
    trace: TraceLike | Sequence[str | os.PathLike[str]] = TRACES,
    jobs: int | None = None,
    progress: bool = False,
    **keywords: Any,
) -> Comparison:
    messages = MessageLog(progress=progress)
    given = [named(each) for each in (trace if isinstance(trace, list | tuple) else [trace])]
    request = request_of(
        CompareRequest, keywords, "compare()", trace=tuple(name for name, _ in given), jobs=jobs
    )
    request.require_applicable()
    request.replay.require_gaps()
    traces = [
        load(structs.replace(request.replay, trace=name), messages)
        if full_trace is None
        else cut(full_trace, transforms_of(request.replay), messages)
        for name, full_trace in given
    ]
    return comparison_of_systems(
        compare_systems(request, messages, traces=traces, with_runs=True, with_curves=True), messages.notes
    )


def comparison_of_systems(compared: Compared, notes: Sequence[str] = ()) -> Comparison:
    """Return the cells of systems as a comparison; `notes` are those of loading traces."""

    def figure() -> Figure:
        from laminabench.render.static.pictures import cost_picture, picture_of_cells

        if curves:
            return cost_picture(curves, compared.cells[0].slo_tbt_ms, compared.title)
        return picture_of_cells(compared.cells)

    curves = compared.curves()
    own = compared.notes()
    where, columns = zip(*compared.side_by_side(), strict=True)
    return Comparison(
        title=compared.title,
        verdict=compared.verdict,
        verdicts=compared.sentences,
        includes=str(compared.includes),
        notes=(*notes, *own),
        sides=columns,
        _cells=tuple((cell.model, cell.trace, cell.label) for cell in compared.cells),
        _where=where,
        _sheets=tuple(sheets_of_systems(compared)),
        _figure=figure,
        _runs=compared.runs,
        _curves=curves,
        _described={**compared.describe(), "notes": own},
    )
