"""Benchmark of the search for a plan, compared with replaying every candidate, in turns."""

from __future__ import annotations

from laminabench.bench.frame import QUIET, Report, Watcher, in_turns, ratios, spread
from laminabench.catalog.cost_file import load_costs, usual_costs
from laminabench.catalog.deployment import devices_named
from laminabench.catalog.find_model import modelled
from laminabench.catalog.hardware import load_devices
from laminabench.systems.registry import MODULES
from laminabench.traces.resolve import resolve
from laminabench.workflows.plan.measure import front, winner
from laminabench.workflows.plan.question import Limits, Question
from laminabench.workflows.plan.request import DEVICES, affordable, devices_of, papers_budget
from laminabench.workflows.plan.search import search

# Layouts of experts have more parameters, and take longer to price.
TARGET_PER_S, TARGET_OF_EXPERTS_PER_S = 200.0, 150.0
TRACE, MODEL, SLO_TBT_P99_MS = "azure-conv", "llama3-70b", 100.0


def run(
    model: str = MODEL,
    devices: str | None = None,
    repeats: int = 3,
    jobs: int | None = None,
    watcher: Watcher = QUIET,
) -> Report:
    """Return candidates a second of the search, and its speedup over the grid in each turn.

    The question is that of `laminabench plan --trace azure-conv --slo-tbt-p99-ms 100`.
    """
    shape, known, devices = modelled(model), load_devices(), devices or DEVICES
    target = TARGET_OF_EXPERTS_PER_S if shape.experts else TARGET_PER_S
    costs = load_costs(usual_costs(shape, devices_named(devices)))
    question = Question(resolve(TRACE, offline=True), shape, costs, SLO_TBT_P99_MS)
    limits = Limits(papers_budget(shape, known))
    candidates = affordable(question, list(MODULES), devices_of(devices, known), limits)
    turns = in_turns(
        {
            "search": lambda: search(question, candidates, jobs=jobs),
            "grid": lambda: search(question, candidates, exhaustive=True, jobs=jobs),
        },
        repeats,
        watcher.progress,
    )
    searched, grid = turns["search"][-1].points, turns["grid"][-1].points
    rates = spread([len(candidates) / result.seconds for result in turns["search"]])
    ratio = ratios(*([result.seconds for result in turns[name]] for name in ("grid", "search")))
    what = f"{TRACE} on {shape.name}, {devices}, TBT p99 of {SLO_TBT_P99_MS:g} ms"
    counts = dict(turns["search"][-1].counts)
    same_winner = winner(searched, SLO_TBT_P99_MS) == winner(grid, SLO_TBT_P99_MS)
    same_front = front(searched, SLO_TBT_P99_MS) == front(grid, SLO_TBT_P99_MS)
    met = rates.median >= target
    facts = {
        "benchmark": "plan",
        "what": what,
        "candidates": len(candidates),
        "counts": counts,
        "candidates_per_s": rates,
        "target_per_s": target,
        "times_faster_than_grid": ratio,
        "same_winner": same_winner,
        "same_front": same_front,
        "met": met,
    }
    speed = rates.text(lambda rate: f"{rate:,.0f}")
    times = ratio.text(lambda ratio: f"{ratio:.1f}")
    same = ["the same" if same else "another" for same in (same_winner, same_front)]
    return Report(
        facts,
        [
            f"{what}: {len(candidates):,} candidates",
            (f"search      {speed} candidates/s, target {target:g}", met),
            f"every one   takes {times} times as long; {same[0]} winner, {same[1]} front",
            ", ".join(f"{count:,} {way}" for way, count in counts.items() if count),
        ],
    )
