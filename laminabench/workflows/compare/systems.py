"""Systems replayed on everything that was asked for: what came out, what to know of it, and its Runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import structs

from laminabench.catalog.find_model import modelled
from laminabench.catalog.models import ModelShape
from laminabench.systems.router import require_prefixes
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.json import Json
from laminabench.util.progress import Listener
from laminabench.workflows.compare.asked import Asked, Terms, require_names_apart, terms
from laminabench.workflows.compare.assumptions import left_out
from laminabench.workflows.compare.cells import Cell, Grid, grid_cells
from laminabench.workflows.compare.kept import keep, sides
from laminabench.workflows.compare.sides import SideBySide
from laminabench.workflows.compare.spec import ComparisonSpec
from laminabench.workflows.replay.run import load

# Which prices differ by less is at equal cost for all that anybody says of them.
ABOUT_EQUAL = 0.01


@dataclass(frozen=True, slots=True)
class Compared:
    """Cell by cell, every system on the same requests."""

    asked: Asked
    terms: Terms
    models: list[ModelShape]
    traces: list[Trace]
    cells: list[Cell]

    @property
    def base(self) -> str:
        return self.terms.base

    @property
    def of_one(self) -> bool:
        """Whether all cells are of one model on one trace: of several there is no one answer."""
        return len(self.models) * len(self.traces) == 1

    @property
    def title(self) -> str:
        names = [self.base, *(name for name in self.asked.systems if name != self.base)]
        return f"{' or '.join(names)}: {self.cells[0].model} on {self.cells[0].trace}, modelled"

    def side_by_side(self) -> list[tuple[str, SideBySide]]:
        """Each cell with where it is from, for the end of a sentence."""
        return [
            (f" ({cell.model} on {cell.trace}, {cell.label})", cell.sides(self.base)) for cell in self.cells
        ]

    def notes(self) -> list[str]:
        """What a reader of the numbers has to know."""
        return list(_notes(self.cells, self.terms.spec))

    def describe(self) -> dict[str, Json]:
        """For --json."""
        spec = self.terms.spec
        equal = spec.equal
        tolerance = None if equal is None else {"tolerance": equal.tolerance}
        return {
            "backend": "modelled",
            "base": self.base,
            "systems": list(spec.systems),
            "equal_cost": tolerance if equal and equal.amount == "cost" else None,
            "equal_power": tolerance if equal and equal.amount == "power" else None,
            "eras": [era.describe() for era in self.terms.eras],
            "host": msgspec.to_builtins(spec.hosts),
            "host_async": list(spec.host_async),
            "max_num_seqs": dict(spec.max_num_seqs),
            **(_of_prompts(spec) if spec.prompt_budget else {}),
            **({"router": spec.router, "queue": spec.queue} if spec.several else {}),
            "cells": [cell.row(self.base) for cell in self.cells],
        }

    def keep(self, directory: Path, listener: Listener) -> list[Path]:
        """The replays again, each as a Run in this folder; the base's first."""
        asked = self.asked
        common = structs.replace(
            asked.choices, trace=asked.traces[0], model=asked.models[0], network=asked.network
        )
        found = [
            side
            for view in self.terms.views
            for side in sides(
                view.specs,
                self.models[0],
                self.traces[0],
                view.costs,
                structs.replace(common, costs=self.terms.costs_as_named[view.costs.name]),
            )
        ]
        found.sort(key=lambda side: side.request.system != self.base)
        with listener.progress("keeping", unit="Runs") as progress:
            return keep(found, directory, progress)


def compare_systems(
    asked: Asked,
    listener: Listener,
    *,
    traces: list[Trace] | None = None,
    jobs: int | None = None,
    kept: str = "",
) -> Compared:
    """All of them, replayed. `kept` says what wants their Runs, which only one model on one trace has.

    `traces` are those that were asked for, where they have been loaded and cut before.
    """
    models = [modelled(name) for name in asked.models]
    found = terms(asked, models)
    if traces is None:
        traces = [load(structs.replace(asked.choices, trace=name), listener) for name in asked.traces]
    require_names_apart("--model", [each.name for each in models])
    require_names_apart("--trace", [each.meta.name for each in traces])
    for trace in traces:
        require_prefixes(found.spec.router, trace)
    if kept and len(models) * len(traces) > 1:
        raise UserError(
            "compare-keep-one",
            f"{kept} the Runs of one model on one trace; there are {len(models)} models and {len(traces)} "
            "traces: name one of each",
        )
    with listener.progress("replaying", unit="cells") as progress:
        cells = grid_cells(Grid(found.views, models, traces), jobs=jobs, progress=progress)
    return Compared(asked, found, models, traces, cells)


def _of_prompts(spec: ComparisonSpec) -> dict[str, Json]:
    how = f"pool:{spec.prefill}" if spec.prefill else "colocated"
    return {"prefill": how, "max_batched_tokens": spec.prompt_budget}


def _notes(cells: list[Cell], spec: ComparisonSpec) -> Iterator[str]:
    """What a reader of the numbers should know of what is behind them."""
    equal = spec.equal
    if equal is None:
        yield from _apart(cells, spec)
    else:
        replaced = {
            f"{cell.deployments[name]} for {cell.amount_of(name, equal)} took the place of {name}'s {asked} "
            f"({cell.model} on {cell.trace})"
            for cell in cells
            for name, asked in cell.asked.items()
            if asked != cell.deployments[name]
        }
        for each in sorted(replaced):
            yield f"at equal {equal.amount} {each}"
    for kinds in filter(None, dict.fromkeys(cell.kinds_of_prices for cell in cells)):
        yield f"prices of different kinds are compared ({kinds}); give comparable ones with --price"
    yield from _without_window(cells)
    yield from left_out(cells)


def _without_window(cells: list[Cell]) -> Iterator[str]:
    """Whose numbers have the end of the run in them, where batches run empty, while the others' have not."""
    short = {
        (cell.trace, tuple(name for name, summary in cell.summaries.items() if summary.window.fell_back))
        for cell in cells
    }
    for trace, names in sorted(short):
        if names:
            yield (
                f"{trace} has too few requests for a steady window of {' and '.join(names)}: numbers there "
                "are over the whole run, until the last batch is empty"
            )


def _apart(cells: list[Cell], spec: ComparisonSpec) -> Iterator[str]:
    """Prices that are not about equal."""
    apart = {
        " and ".join(
            f"{cell.deployments[name]} of {name} for ${cell.usd_per_hour[name]:.2f}" for name in (a, b)
        )
        for cell in cells
        for a, b in zip(spec.systems, spec.systems[1:], strict=False)
        if abs(cell.usd_per_hour[a] / cell.usd_per_hour[b] - 1) > ABOUT_EQUAL
    }
    for each in sorted(apart):
        yield f"prices an hour differ: {each}; --equal-cost holds them together"
