"""What `laminabench compare` found: Runs side by side, or systems cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laminabench.cli.flags import changed, given_in
from laminabench.cli.output import Output
from laminabench.render.model import Sheet
from laminabench.render.sheets.compare import sheet_of_runs, sheets_of_systems, verdicts
from laminabench.requests.replay import ReplayRequest
from laminabench.util.errors import UserError
from laminabench.util.json import Json
from laminabench.workflows.compare.asked import MODELS, SHARED, TRACES, Asked, systems_named
from laminabench.workflows.compare.rounds import compare_runs
from laminabench.workflows.compare.sides import SideBySide
from laminabench.workflows.compare.systems import compare_systems


@dataclass(frozen=True, slots=True)
class Answer:
    """What the command prints, writes, draws and judges."""

    title: str | None  # of a page; the Runs' names, if None
    comparisons: list[tuple[str, SideBySide]]  # each with where it is from, for the end of a sentence
    described: dict[str, Json]  # for --json
    notes: list[str]  # what a reader of the numbers has to know
    sheets: list[Sheet]
    draw: Callable[[Path], None]
    runs: Callable[[Path], list[Path]]  # the Runs behind it; those that are not kept go into this folder
    verdicts: Sequence[str] = ()  # what all of it comes to, in a sentence for each system


def of_runs(flags: Mapping[str, Any], out: Output) -> Answer:
    """The Runs of the command line."""
    runs: tuple[Path, ...] = flags["runs"]
    if len(runs) < 2:
        raise UserError(
            "compare-too-few",
            "one Run is nothing to compare; give at least two, or --trace to replay systems",
        )
    base = Path(flags["base"]) if flags["base"] else None
    with out.progress("reading", unit="Runs") as progress:
        compared, doubts = compare_runs(
            runs,
            base=base,
            slo_tbt_ms=flags["slo_tbt_ms"],
            slo_ttft_ms=flags["slo_ttft_ms"],
            group=not flags["no_group"],
            progress=progress,
        )
    if len(compared.sides) < 2:
        raise UserError(
            "compare-too-few",
            "these Runs are rounds of one thing, with nothing to compare; --no-group keeps them apart",
        )
    return answer_of_runs(compared, doubts, runs)


def answer_of_runs(compared: SideBySide, notes: list[str], runs: Sequence[Path]) -> Answer:
    """One comparison, of Runs."""

    def draw(target: Path) -> None:
        from laminabench.render.static.compared import draw_sides

        draw_sides(compared, target)

    described = {**compared.describe(), "notes": notes}
    return Answer(
        None, [("", compared)], described, notes, [sheet_of_runs(compared)], draw, lambda _: list(runs)
    )


def shared(flags: Mapping[str, Any]) -> dict[str, Any]:
    """What the flags choose for every replay, by a request's names."""
    return given_in({name: flags[name] for name in SHARED})


def of_systems(flags: Mapping[str, Any], workload: ReplayRequest, out: Output) -> Answer:
    """The systems of the command line, replayed on everything that it names."""
    same = (
        "costs",
        "eras",
        "deployments",
        "limits",
        "hosts",
        "host_async",
        "network",
        "devices",
        "tolerance",
    )
    asked = Asked(
        systems=systems_named(flags["systems"]),
        models=flags["models"] or MODELS,
        traces=flags["traces"] or TRACES,
        equal="cost" if flags["equal_cost"] else "power" if flags["equal_power"] else None,
        base=flags["base"],
        choices=changed(workload, shared(flags)),
        **{name: flags[name] for name in same},
    )
    kept = "--out keeps" if flags["directory"] else "--report shows" if flags["report"] else ""
    found = compare_systems(asked, out, jobs=flags["jobs"], kept=kept)
    said = verdicts(found.cells, found.base) if found.of_one else []
    notes = found.notes()

    def draw(target: Path) -> None:
        from laminabench.render.static.compared import draw_cells

        draw_cells(found.cells, target)

    return Answer(
        found.title,
        found.side_by_side(),
        {**found.describe(), "verdicts": list(said), "notes": notes},
        notes,
        sheets_of_systems(found),
        draw,
        lambda directory: found.keep(directory, out),
        said,
    )
