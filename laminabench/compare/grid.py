"""Many cells at once, on this machine's cores."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from laminabench.catalog.costs import CostSet
from laminabench.catalog.models import ModelShape
from laminabench.compare.cells import Cell, cell
from laminabench.compare.terms import Terms
from laminabench.spread import spread
from laminabench.traces.table import Trace


@dataclass(frozen=True, slots=True)
class Grid:
    """Every model on every trace with every cost set."""

    terms: Terms
    models: list[ModelShape]
    traces: list[Trace]
    cost_sets: list[CostSet]


def grid_cells(
    grid: Grid, *, jobs: int | None = None, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Cell]:
    """All of them, in the order cost sets, models, traces."""
    places = list(
        itertools.product(range(len(grid.cost_sets)), range(len(grid.models)), range(len(grid.traces)))
    )
    found: dict[int, Cell] = {}
    for place, each in spread(_work, places, grid, jobs=jobs):
        found[place] = each
        progress(len(found), len(places))
    return [found[place] for place in range(len(places))]


def _work(grid: Grid, place: tuple[int, int, int]) -> Cell:
    costs, model, trace = place
    return cell(grid.terms, grid.models[model], grid.traces[trace], grid.cost_sets[costs])
