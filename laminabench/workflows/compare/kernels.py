"""Cells with the attention kernels that servers take without a flag: where the better system is another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from laminabench.catalog.deployment import devices_named
from laminabench.catalog.kernels import out_of_the_box, with_kernels
from laminabench.workflows.compare.cells import Cell, Grid, grid_cells


def kernel_flips(grid: Grid, cells: Sequence[Cell], base: str, jobs: int | None) -> Iterator[str]:
    """Yield a sentence where vLLM's own kernels change the better system; replays only what has others."""
    on = devices_named(",".join(text for cell in cells for text in cell.deployments.values()))
    chosen = [out_of_the_box(view.costs, on) for view in grid.views]
    if not any(chosen):
        return
    views = [
        view._replace(costs=with_kernels(view.costs, kernels))
        for view, kernels in zip(grid.views, chosen, strict=True)
    ]
    others = grid_cells(replace(grid, views=views, common=None), jobs=jobs)
    yield from flips(cells, others, base, sorted({each for some in chosen for each in some}))


def flips(cells: Sequence[Cell], others: Sequence[Cell], base: str, kernels: Sequence[str]) -> Iterator[str]:
    """Yield a sentence where the better system of a cell is another with these kernels."""
    flipped = [
        f"{cell.model} on {cell.trace}, {cell.label}: {name} {here:+.1%}, then {there:+.1%}"
        for cell, other in zip(cells, others, strict=True)
        for name in cell.summaries
        if name != base
        for here, there in [(each.gain_per_dollar_of(name, base) for each in (cell, other))]
        if (here > 0) != (there > 0)
    ]
    if flipped:
        yield (
            f"with {' and '.join(kernels)}, as vLLM takes without a flag, the better of {base} and another "
            f"system changes in {len(flipped)} of {len(cells)} cells (tokens a dollar): {'; '.join(flipped)}"
        )
