"""`lb.compare`: Runs side by side, or systems on the same requests, as `laminabench compare` has them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from msgspec import structs

from laminabench.api.choices import Name, Shared, paired, request_of
from laminabench.api.comparison import Comparison
from laminabench.api.heard import Heard
from laminabench.api.replay import named
from laminabench.api.run import Run, read
from laminabench.render.sheets.compare import sheet_of_runs, sheets_of_systems, verdicts
from laminabench.runs.read import Run as Table
from laminabench.runs.read import read_run
from laminabench.systems.registry import COMPARED
from laminabench.traces.resolve import cut, transforms_of
from laminabench.util.errors import UserError
from laminabench.workflows.compare.asked import MODELS, TRACES, Asked, systems_named
from laminabench.workflows.compare.recorded import of_run
from laminabench.workflows.compare.rounds import compare_recorded
from laminabench.workflows.compare.systems import compare_systems
from laminabench.workflows.replay.run import load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    trace: TraceLike | Sequence[Name],
    model: Name | Sequence[Name] = ...,
    systems: Sequence[str] = ...,
    deployments: Mapping[str, str] | None = ...,
    equal_cost: bool = ...,
    equal_power: bool = ...,
    tolerance: float = ...,
    devices: Sequence[str] = ...,
    costs: Name | Sequence[Name] = ...,
    eras: str | Sequence[str] = ...,
    hosts: Mapping[str, str] | None = ...,
    host_async: str = ...,
    max_num_seqs: Mapping[str, int] | None = ...,
    network: str | None = ...,
    base: str | None = ...,
    jobs: int | None = ...,
    progress: bool = ...,
    **choices: Unpack[Shared],
) -> Comparison: ...


def compare(*runs: RunLike, **asked: Any) -> Comparison:
    """Runs side by side, or systems replayed on the same requests.

    With Runs (or their folders): the first is what ratios are to, unless `base` is another's place. Runs of
    one live thing are taken as rounds of it, unless `group` is false; `slo_tbt_ms` holds all to one limit.

    With `trace`: every system is replayed, modelled, on every trace with every model and cost set or era, at
    about the same price with `equal_cost`. The keywords are the flags of `laminabench compare`; of
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
    return _of_runs(*runs, **asked) if runs else _of_systems(**asked)


def _of_runs(
    *given: RunLike,
    base: int = 0,
    slo_tbt_ms: float | None = None,
    slo_ttft_ms: float | None = None,
    group: bool = True,
) -> Comparison:
    if len(given) < 2:
        raise UserError("compare-too-few", "one Run is nothing to compare; give at least two")
    if not 0 <= base < len(given):
        raise UserError("compare-base-unknown", f"base is the place of a Run, 0 to {len(given) - 1}")
    runs = [each if isinstance(each, Run) else read(each) for each in given]
    # What is in memory only is told apart by its place.
    tables = [each.table(f"#{place}") for place, each in enumerate(runs, 1)]
    places = [each.path.resolve() if each.path else id(each) for each in runs]
    if len(set(places)) < len(places):
        raise UserError("compare-run-twice", "a Run is given twice; a Run is compared with other Runs")
    found = [of_run(each, slo_tbt_ms, slo_ttft_ms) for each in tables]
    compared, notes = compare_recorded(found, base=found[base].path, group=group)
    if len(compared.sides) < 2:
        raise UserError(
            "compare-too-few",
            "these Runs are rounds of one thing, with nothing to compare; group=False keeps them apart",
        )

    def figure() -> Figure:
        from laminabench.render.static.compared import picture_of_sides

        return picture_of_sides(compared)

    names = [side.label for side in compared.sides]
    manifest = tables[base].manifest
    cell = (manifest.model_name, manifest.trace.name, str(manifest.choices.get("costs", "")))
    return Comparison(
        title=f"{', '.join(names)}: ratios are to {names[compared.base]}",
        verdicts=(),
        notes=tuple(notes),
        sides=(compared,),
        _cells=(cell,),
        _sheets=(sheet_of_runs(compared),),
        _figure=figure,
        _runs=lambda _: tables,
    )


def _of_systems(
    *,
    trace: TraceLike | Sequence[Name] = TRACES,
    model: Name | Sequence[Name] = MODELS,
    systems: Sequence[str] = COMPARED,
    deployments: Mapping[str, str] | None = None,
    equal_cost: bool = False,
    equal_power: bool = False,
    tolerance: float = 0.1,
    devices: Sequence[str] = (),
    costs: Name | Sequence[Name] = (),
    eras: str | Sequence[str] = (),
    hosts: Mapping[str, str] | None = None,
    host_async: str = "neither",
    max_num_seqs: Mapping[str, int] | None = None,
    network: str | None = None,
    base: str | None = None,
    jobs: int | None = None,
    progress: bool = False,
    **choices: Unpack[Shared],
) -> Comparison:
    if equal_cost and equal_power:
        raise UserError(
            "compare-equal-both", "equal_cost and equal_power: deployments are chosen by one of them"
        )
    heard = Heard(progress=progress)
    given = [named(each) for each in (trace if isinstance(trace, list | tuple) else [trace])]
    equal: Literal["cost", "power"] | None = "cost" if equal_cost else "power" if equal_power else None
    request = request_of(dict(choices), "compare()")
    request.require_gaps()
    asked = Asked(
        systems=systems_named(",".join(_listed(systems))),
        models=_listed(model),
        traces=tuple(name for name, _ in given),
        costs=_listed(costs),
        eras=_listed(eras),
        deployments=paired(deployments or {}),
        limits=paired(max_num_seqs or {}),
        hosts=paired(hosts or {}),
        host_async=host_async,
        network=network,
        devices=",".join(_listed(devices)) or None,
        equal=equal,
        tolerance=tolerance,
        base=base,
        choices=request,
    )
    traces = [
        load(structs.replace(request, trace=name), heard)
        if whole is None
        else cut(whole, transforms_of(request), heard)
        for name, whole in given
    ]
    found = compare_systems(asked, heard, traces=traces, jobs=jobs)

    def figure() -> Figure:
        from laminabench.render.static.compared import picture_of_cells

        return picture_of_cells(found.cells)

    def runs(directory: Path) -> list[Table]:
        return [read_run(path) for path in found.keep(directory, heard)] if found.of_one else []

    return Comparison(
        title=found.title,
        verdicts=tuple(verdicts(found.cells, found.base)) if found.of_one else (),
        notes=(*heard.notes, *found.notes()),
        sides=tuple(compared for _, compared in found.side_by_side()),
        _cells=tuple((cell.model, cell.trace, cell.label) for cell in found.cells),
        _sheets=tuple(sheets_of_systems(found)),
        _figure=figure,
        _runs=runs,
    )


def _listed(names: Name | Sequence[Name]) -> tuple[str, ...]:
    """One name or several."""
    return tuple(os.fspath(name) for name in ([names] if isinstance(names, str | os.PathLike) else names))
