"""How fast a plan is found, beside replaying every candidate: in turns, so that both see the same machine."""

from __future__ import annotations

from collections.abc import Callable

from laminabench.bench.timing import spread
from laminabench.catalog.cost_file import DEFAULT_COSTS, load_costs
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import load_devices
from laminabench.plan.candidate import Candidate, Limits
from laminabench.plan.front import front, winner
from laminabench.plan.question import Question
from laminabench.plan.request import DEVICES, affordable, devices_of, papers_budget
from laminabench.plan.search import Found, search
from laminabench.systems.registry import MODULES
from laminabench.traces.resolve import resolve

TARGET_PER_S = 200.0
TRACE, MODEL, SLO_TBT_P99_MS = "azure-conv", "llama3-70b", 100.0

Row = dict[str, object]


def question() -> tuple[Question, list[Candidate]]:
    """What `laminabench plan --trace azure-conv --slo-tbt-p99-ms 100` asks."""
    shape, devices = model(MODEL), load_devices()
    asked = Question(resolve(TRACE, offline=True), shape, load_costs(DEFAULT_COSTS), SLO_TBT_P99_MS)
    chosen = devices_of(DEVICES, devices)
    return asked, affordable(asked, list(MODULES), chosen, Limits(papers_budget(shape, devices)))


def run(
    repeats: int = 3, jobs: int | None = None, told: Callable[[int, int], None] = lambda done, total: None
) -> Row:
    """Candidates a second of the search, with spread, and by how much it beats the grid in each turn."""
    asked, candidates = question()
    searched: list[Found] = []
    ratios: list[float] = []
    for turn in range(repeats):
        by_search = search(asked, candidates, jobs=jobs)
        told(2 * turn + 1, 2 * repeats)
        by_grid = search(asked, candidates, exhaustive=True, jobs=jobs)
        told(2 * turn + 2, 2 * repeats)
        searched.append(by_search)
        ratios.append(by_grid.seconds / by_search.seconds)
    rates = spread([len(candidates) / found.seconds for found in searched])
    return {
        "what": f"{TRACE} on {MODEL}, TBT p99 of {SLO_TBT_P99_MS:g} ms",
        "candidates": len(candidates),
        "counts": dict(by_search.counts),
        "candidates_per_s": rates,
        "target_per_s": TARGET_PER_S,
        "times_faster_than_grid": spread(ratios),
        "same_winner": winner(by_search.points, SLO_TBT_P99_MS) == winner(by_grid.points, SLO_TBT_P99_MS),
        "same_front": front(by_search.points, SLO_TBT_P99_MS) == front(by_grid.points, SLO_TBT_P99_MS),
        "met": rates["median"] >= TARGET_PER_S,
    }
