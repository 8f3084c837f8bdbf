"""How fast the virtual board is: a decision, the paper's dynamic scenario, an hour of traffic."""

from __future__ import annotations

import statistics
from dataclasses import replace

from laminabench.bench.frame import Report, Row, timed, times_report
from laminabench.bench.sim import simulation_seconds
from laminabench.catalog.boards import board
from laminabench.catalog.cost_file import DEFAULT_COSTS, load_costs
from laminabench.catalog.find_model import model
from laminabench.sim.h2m2 import uniform
from laminabench.sim.h2m2_scenario import BATCH, ITERATIONS, LONGEST, dynamic_trace
from laminabench.sim.simulate import Offered
from laminabench.sim.spec import Spec, shape_of
from laminabench.systems.registry import papers_setup, system
from laminabench.traces.resolve import resolve
from laminabench.traces.table import Trace

DECISION_TARGET_S = 20e-6
SCENARIO_TARGET_S = 0.050
MODEL, BOARD = "gpt3-175b", "h2m2"
# What is compared: the paper's solver, and the best that any could do.
SOLVERS = ("greedy", "oracle")
LENGTHS = range(16, LONGEST + 1, 16)


def run(*, repeats: int = 5, decisions: int = 200) -> Report:
    """Decisions of both solvers, then whole replays."""
    rows = [
        *(_decision(solver, repeats, decisions) for solver in SOLVERS),
        _scenario(repeats),
        _hour(resolve("azure-conv", offline=True), repeats),
    ]
    return times_report("h2m2", rows)


def spec_of(max_num_seqs: int | None = None) -> Spec:
    """One board as the paper has it, with its solver and its memory management."""
    setup = papers_setup("h2m2", model(MODEL), load_costs(DEFAULT_COSTS))
    return system("h2m2").build(replace(setup, max_num_seqs=max_num_seqs)).spec


def _decision(solver: str, repeats: int, decisions: int) -> Row:
    """Over lengths, each by the median of its repeats; judged by the length that takes longest."""
    from laminabench import _sim

    chosen = board(BOARD)
    moments = [uniform(BATCH, length, chosen) for length in LENGTHS]
    measured = [
        _sim.h2m2_decide(
            board=chosen.native(),
            shape=shape_of(model(MODEL)),
            policy=solver,
            moments=[moment.native() for moment in moments],
            repeats=decisions,
        )
        for _ in range(repeats)
    ]
    seconds = [statistics.median(of_length) for of_length in zip(*measured, strict=True)]
    what = f"a decision of {solver}, {MODEL}, batch {BATCH}, {len(LENGTHS)} lengths"
    return replace(timed(what, seconds, DECISION_TARGET_S), met=max(seconds) <= DECISION_TARGET_S)


def _scenario(repeats: int) -> Row:
    what = f"the dynamic scenario: {ITERATIONS} iterations of {BATCH} requests, memory managed"
    seconds = simulation_seconds(dynamic_trace(0), spec_of(BATCH), Offered(), repeats)
    return timed(what, seconds, SCENARIO_TARGET_S)


def _hour(trace: Trace, repeats: int) -> Row:
    seconds = simulation_seconds(trace, spec_of(), Offered(), repeats)
    return timed(f"azure-conv on 1xh2m2/{MODEL}: simulation", seconds, None, requests=len(trace))
