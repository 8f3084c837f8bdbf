"""A comparison of systems: its cells, what to know of them, and its Runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from laminabench.analysis.verdict import Contender, Verdict, verdict
from laminabench.requests.compare import CompareRequest
from laminabench.runs.read import Run
from laminabench.systems.includes import Includes, together
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.json import Json
from laminabench.util.progress import Listener
from laminabench.workflows.compare.assumptions import left_out
from laminabench.workflows.compare.cells import Cell, Grid, grid_cells
from laminabench.workflows.compare.curves import Curve
from laminabench.workflows.compare.plan import Plan, resolve
from laminabench.workflows.compare.planned import Load, planned
from laminabench.workflows.compare.runs import CellRun
from laminabench.workflows.compare.sides import SideBySide
from laminabench.workflows.compare.spec import ComparisonSpec
from laminabench.workflows.verdict import baseline, contender, limits, nearest_even

# Prices that differ by less are about equal.
ABOUT_EQUAL = 0.01


@dataclass(frozen=True, slots=True)
class Compared:
    """All cells of a plan: in each, every system on the same requests."""

    plan: Plan
    cells: list[Cell]
    loads: tuple[Load, ...] = ()  # how deployments were chosen, where a plan did

    @property
    def request(self) -> CompareRequest:
        return self.plan.request

    @property
    def base(self) -> str:
        return self.plan.base

    @property
    def title(self) -> str:
        names = [self.base, *(name for name in self.plan.spec.systems if name != self.base)]
        return f"{' or '.join(names)}: {self.cells[0].model} on {self.cells[0].trace}, modelled"

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of a single cell, or of the first load; of several each has its own."""
        return verdict_on(self.cells[0]) if len(self.cells) == 1 or self.loads else None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in a few sentences."""
        return sentences_on(self.cells)

    @property
    def includes(self) -> Includes:
        """The contents of all cells' numbers."""
        return together(cell.includes for cell in self.cells)

    def side_by_side(self) -> list[tuple[str, SideBySide]]:
        """Return each cell with its origin, for the end of a sentence."""
        return [
            (f" ({cell.model} on {cell.trace}, {cell.label})", cell.sides(self.base)) for cell in self.cells
        ]

    def curves(self) -> list[tuple[str, Curve]]:
        """Return the curves with their names, in which prices are and, of several, the reading."""
        cells = [cell for cell in self.cells if cell.curves]
        several = len(cells) > 1
        return [
            (
                f"{each.system} {each.deployment}, ${cell.usd_per_hour[each.system]:.2f} an hour"
                + f", {cell.label}" * several,
                each,
            )
            for cell in cells
            for each in cell.curves
        ]

    def notes(self) -> list[str]:
        """Return what a reader of the numbers has to know."""
        unmet = (f"{name}, {each.name}: {why}" for each in self.loads for name, why in each.unmet.items())
        own = _notes(self.cells, self.plan.spec, chosen=bool(self.loads))
        # Verdicts of loads say it themselves.
        flips = () if self.loads or self.verdict else kernel_flips(self.cells, self.base)
        return [*unmet, *own, *flips]

    def describe(self) -> dict[str, Json]:
        """Return the comparison for --json."""
        spec = self.plan.spec
        equal = spec.equal
        tolerance = None if equal is None else {"tolerance": equal.tolerance}
        return {
            "backend": "modelled",
            "base": self.base,
            "systems": list(spec.systems),
            "equal_cost": tolerance if equal and equal.amount == "cost" else None,
            "equal_power": tolerance if equal and equal.amount == "power" else None,
            "eras": [era.describe() for era in self.plan.eras],
            "host": msgspec.to_builtins(spec.hosts),
            "host_async": list(spec.host_async),
            "max_num_seqs": dict(spec.max_num_seqs),
            **(_of_prompts(spec) if spec.prompt_budget else {}),
            **({"router": spec.router, "queue": spec.queue} if spec.several else {}),
            **({"chosen": self._chosen()} if self.loads else {}),
            "verdict": self.verdict and self.verdict.describe(),
            "sentences": list(self.sentences),
            "includes": self.includes.describe(),
            "cells": [{**cell.row(self.base), "verdict": verdict_on(cell).describe()} for cell in self.cells],
        }

    def _chosen(self) -> dict[str, Json]:
        plan, common = self.loads[-1].plan, self.plan.replay
        return {
            "slo_tbt_p99_ms": plan.request.slo_tbt_p99_ms,
            "slo_ttft_p99_ms": plan.request.slo_ttft_ms,
            "budget_usd_per_hour": plan.budget,
            "devices": [each.name for each in plan.devices],
            "loads": [each.describe(common) for each in self.loads],
        }

    def runs(self) -> list[Run]:
        """Return the Runs behind the numbers, each once and named by its place; the base's first."""
        cell_runs: dict[object, CellRun] = {}
        for cell in self.cells:
            for each in cell.runs:
                cell_runs.setdefault((cell.costs, cell.reading and cell.reading.era.name, each.request), each)
        runs = sorted(cell_runs.values(), key=lambda each: each.request.system != self.base)
        return [replace(each.run, directory=Path(f"{n}-{each.name}")) for n, each in enumerate(runs, 1)]


def compare_systems(
    request: CompareRequest,
    listener: Listener,
    *,
    traces: list[Trace] | None = None,
    wants_runs: str = "",
    with_runs: bool = False,
    with_curves: bool = False,
) -> Compared:
    """Replay all systems of a request on all traces; only one model on one trace has curves.

    `traces` are the request's, where they have been loaded and cut before. `wants_runs` names an option
    that needs the Runs, which only one model on one trace has.
    """
    if request.planned:
        stored = bool(wants_runs or with_runs)
        return Compared(*planned(request, listener, traces, stored=stored, with_curves=with_curves))
    plan = resolve(request, listener, traces)
    if wants_runs and not plan.is_single:
        raise UserError(
            "compare-keep-one",
            f"{wants_runs} the Runs of one model on one trace; there are {len(plan.models)} models and "
            f"{len(plan.traces)} traces: name one of each",
        )
    common = plan.replay if plan.is_single and (wants_runs or with_runs) else None
    curves = with_curves and plan.is_single
    grid = Grid(plan.views, plan.models, plan.traces, common, plan.costs_as_named, curves)
    with listener.progress("replaying", unit="cells") as progress:
        cells = grid_cells(grid, jobs=request.jobs, progress=progress)
    return Compared(plan, cells)


def _of_prompts(spec: ComparisonSpec) -> dict[str, Json]:
    how = f"pool:{spec.prefill}" if spec.prefill else "colocated"
    return {"prefill": how, "max_batched_tokens": spec.prompt_budget}


def _notes(cells: list[Cell], spec: ComparisonSpec, *, chosen: bool) -> Iterator[str]:
    """Yield what a reader of the numbers has to know."""
    equal = spec.equal
    if equal is None and not chosen:
        yield from _unequal_prices(cells, spec)
    elif equal is not None:
        replaced = {
            f"{cell.deployments[name]} for {cell.amount_of(name, equal)} took the place of {name}'s "
            f"{requested} ({cell.model} on {cell.trace})"
            for cell in cells
            for name, requested in cell.requested.items()
            if requested != cell.deployments[name]
        }
        for each in sorted(replaced):
            yield f"at equal {equal.amount} {each}"
    for kinds in filter(None, dict.fromkeys(cell.kinds_of_prices for cell in cells)):
        yield f"prices of different kinds are compared ({kinds}); give comparable ones with --price"
    yield from _without_window(cells)
    yield from left_out(cells)


def _without_window(cells: list[Cell]) -> Iterator[str]:
    """Yield the systems whose numbers include the end of the run, where batches run empty."""
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


def _unequal_prices(cells: list[Cell], spec: ComparisonSpec) -> Iterator[str]:
    """Yield a note on each pair of unequal prices."""
    separate = {
        " and ".join(
            f"{cell.deployments[name]} of {name} for ${cell.usd_per_hour[name]:.2f}" for name in (a, b)
        )
        for cell in cells
        for a, b in zip(spec.systems, spec.systems[1:], strict=False)
        if abs(cell.usd_per_hour[a] / cell.usd_per_hour[b] - 1) > ABOUT_EQUAL
    }
    for each in sorted(separate):
        yield f"prices an hour differ: {each}; --equal-cost holds them together"


def contenders(cell: Cell) -> list[Contender]:
    """Return the systems of one cell as a verdict takes them."""
    return [
        contender(name, cell.deployments[name], cell.usd_per_hour[name], summary, cell.errors[name])
        for name, summary in cell.summaries.items()
    ]


def verdict_on(cell: Cell) -> Verdict:
    """Judge the systems of one cell."""
    within = limits(cell.slo_tbt_ms, cell.slo_ttft_ms)
    subject = f"{cell.trace} with {cell.model}" + (f" ({cell.load})" if cell.load else "")
    judged = verdict(contenders(cell), within, subject=subject, baseline=baseline(cell.summaries))
    if judged.cheapest is None or judged.runner_up is None:
        return judged
    sides = [(each.tokens_per_s, cell.devices[each.system]) for each in (judged.cheapest, judged.runner_up)]
    depends = judged.depends or cell.other.decide(judged) or str(nearest_even(*sides) or "")
    return replace(judged, depends=depends)


def kernel_flips(cells: Sequence[Cell], base: str) -> Iterator[str]:
    """Yield a sentence where vLLM's own kernels change the better system of several cells."""
    flipped = []
    for cell in cells:
        sides = {each.system: each for each in contenders(cell)}
        for name, side in sides.items():
            here, there = side.margin_over(sides[base]), cell.other.gain(side, sides[base])
            if name != base and (here > 0) != (there > 0):
                where = f"{cell.model} on {cell.trace}, {cell.label}"
                flipped.append(f"{where}: {name} {here:+.1%}, then {there:+.1%}")
    if flipped:
        flags = " ".join(sorted({each for cell in cells for each in cell.other.kernels}))
        yield (
            f"with vLLM's default kernel (--attention-kernel {flags}) the better of {base} and another "
            f"system changes in {len(flipped)} of {len(cells)} cells (tokens a dollar): {'; '.join(flipped)}"
        )


def sentences_on(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the answer: of one cell its verdict, of several how many each system wins."""
    sourced = [cell for cell in cells if not cell.same_host]
    verdicts = [verdict_on(cell) for cell in sourced]
    if len(verdicts) == 1:
        return verdicts[0].sentences
    if all(cell.load for cell in sourced):
        return tuple(sentence for each in verdicts for sentence in each.sentences)
    if len({(cell.model, cell.trace) for cell in sourced}) == 1:
        labelled = zip(sourced, verdicts, strict=True)
        return tuple(f"{cell.label}: {each.sentences[0]}" for cell, each in labelled)
    wins = Counter(each.cheapest.system for each in verdicts if each.cheapest)
    clear = Counter(each.cheapest.system for each in verdicts if each.cheapest and each.clear)
    each = (f"{name} in {count} ({clear[name]} clearly)" for name, count in wins.most_common())
    none = len(verdicts) - wins.total()
    without = f"; in {none} nothing is within the limit" if none else ""
    return (
        f"Of {len(verdicts)} cells the cheapest system within the limit is {', '.join(each)}{without}; the "
        "rest is too close to call for the model's error.",
    )
