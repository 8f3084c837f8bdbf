"""H2M2's dynamic scenario, replayed: requests end at random and are replaced, whatever the mapping policy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from laminabench.catalog.cost_file import DEFAULT_COSTS, load_costs
from laminabench.catalog.find_model import model
from laminabench.figures.papers.h2m2.ground import Way, original
from laminabench.sim.h2m2 import (
    BATCH,
    ITERATIONS,
    LONGEST,
    IterationLoad,
    dynamic_trace,
    load_of,
    plan,
    uniform,
)
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import simulate
from laminabench.sim.spec import BoardTiming, Float64, Offered, Spec
from laminabench.systems.registry import papers_setup, system

if TYPE_CHECKING:
    import pandas as pd

MODEL = "gpt3-175b"
# The largest batch that the scenario can come to: what a mapping that never changes is solved for.
WORST_CASE = (BATCH, LONGEST + ITERATIONS)


class Run(NamedTuple):
    """The scenario by one policy; arrays have an entry an iteration."""

    seed: int
    way: str
    duration_s: Float64
    kv_tokens: Float64
    moved_bytes: Float64
    moving_s: Float64


def timing_of(spec: Spec) -> BoardTiming:
    """A board's spec has this in place of tables."""
    assert isinstance(spec.timing, BoardTiming)
    return spec.timing


def spec_of(way: Way) -> Spec:
    """A board that serves the model: decoder layers only and no host, as the paper counts an iteration."""
    # The cost set is only asked for the host's time, which is taken out again.
    setup = papers_setup("h2m2", model(MODEL), load_costs(DEFAULT_COSTS))
    spec = system("h2m2").build(replace(setup, max_num_seqs=BATCH, mapping=way.policy)).spec
    timing = timing_of(spec)
    worst = uniform(*WORST_CASE, timing.board)
    alone = replace(
        timing,
        translated=way.translated,
        shares=timing.shares if way.shares is None else way.shares(timing.board, timing.model, worst),
        lm_head=False,
        host_fixed=0.0,
        host_per_request=0.0,
    )
    return replace(spec, timing=alone)


def outcome_of(way: Way, seed: int) -> Outcome:
    """The scenario of that seed, the same for every policy."""
    outcome = simulate(dynamic_trace(seed), spec_of(way), Offered())
    assert len(outcome.iterations["size"]) == ITERATIONS
    return outcome


def run(way: Way, seed: int) -> Run:
    """With page tables, columns of KV and moves between the sides."""
    outcome = outcome_of(way, seed)
    done, memory, nothing = outcome.iterations, outcome.memory, np.zeros(ITERATIONS)
    moved, moving = (nothing, nothing) if memory is None else (memory["moved_bytes"], memory["moving_s"])
    return Run(seed, way.words, done["duration_s"], done["kv_tokens"], moved, moving)


def run_exactly(way: Way, words: str, seed: int) -> Run:
    """The same requests with every byte where the policy wants it: no pages to fill and nothing to move."""
    outcome, timing = outcome_of(way, seed), timing_of(spec_of(way))
    plans = [
        plan(timing.board, timing.model, way.policy, moment, translated=way.translated)
        for moment in moments(outcome, seed)
    ]
    nothing = np.zeros(ITERATIONS)
    duration_s = np.array([each.iteration_s for each in plans])
    return Run(seed, words, duration_s, outcome.iterations["kv_tokens"], nothing, nothing)


def moments(outcome: Outcome, seed: int) -> list[IterationLoad]:
    """What each iteration had to do."""
    prompts, board = dynamic_trace(seed).prompt_tokens, original()
    first, last = outcome.requests["first_iteration"], outcome.requests["last_iteration"]
    found = []
    for iteration in range(ITERATIONS):
        here = (first <= iteration) & (iteration <= last)
        # With the token that the iteration makes.
        lengths = prompts[here] + iteration - first[here] + 1
        found.append(load_of(lengths.tolist(), board))
    return found


def frame_of(runs: list[Run], baseline: str) -> pd.DataFrame:
    """A row for each iteration: how long it took, beside how long it took the baseline."""
    import pandas as pd

    shape = model(MODEL)
    kv_bytes = 2 * shape.layers * shape.kv_size  # INT8
    slow = {each.seed: each.duration_s for each in runs if each.way == baseline}
    frames = [
        pd.DataFrame(
            {
                "seed": each.seed,
                "way": each.way,
                "iteration": range(1, ITERATIONS + 1),
                "iteration_ms": 1000 * each.duration_s,
                "speed_up": slow[each.seed] / each.duration_s,
                "kv_gb": each.kv_tokens * kv_bytes / 1e9,
                "moved_gb": each.moved_bytes / 1e9,
                "moving_ms": 1000 * each.moving_s,
            }
        )
        for each in runs
    ]
    return pd.concat(frames, ignore_index=True)
