"""H2M2's dynamic scenario (figure 16), replayed: requests of all lengths end at random and are replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from laminabench import _sim
from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.find_model import model
from laminabench.papers.context import Context
from laminabench.papers.h2m2.granularity import SHARE, STATIC
from laminabench.papers.h2m2.speeds import (
    H2M2,
    LPDDR_ONLY,
    OF_FLEXGEN,
    OF_TRANSLATION,
    ORACLE,
    Way,
    how,
    loaded_otherwise,
    original,
    under_the_other_load,
)
from laminabench.papers.paper import Result
from laminabench.papers.replays import ends, stacked
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import simulate
from laminabench.sim.spec import Float64, Offered, Spec
from laminabench.systems.modelled.h2m2.mapping import (
    BATCH,
    ITERATIONS,
    LONGEST,
    IterationLoad,
    dynamic_trace,
    flexgen_shares,
    load_of,
    plan,
    uniform,
)
from laminabench.systems.modelled.h2m2.timing import BoardTiming, shape_of
from laminabench.systems.registry import papers_setup, system

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
    """Return the timing that a board's spec has in place of tables."""
    assert isinstance(spec.timing, BoardTiming)
    return spec.timing


def spec_of(way: Way) -> Spec:
    """Return a board that serves the model: decoder layers only and no host, as the paper counts."""
    # The cost set has only the host's time, which is taken out again.
    setup = papers_setup("h2m2", model(MODEL), load_costs("vllm-0.14"))
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
    """Simulate the scenario of that seed, the same for every policy."""
    outcome = simulate(dynamic_trace(seed), spec_of(way), Offered())
    assert len(outcome.iterations["size"]) == ITERATIONS
    return outcome


def run(way: Way, seed: int) -> Run:
    """Simulate with page tables, columns of KV and moves between the sides."""
    outcome = outcome_of(way, seed)
    done, memory, nothing = outcome.iterations, outcome.memory, np.zeros(ITERATIONS)
    moved, moving = (nothing, nothing) if memory is None else (memory["moved_bytes"], memory["moving_s"])
    return Run(seed, way.words, done["duration_s"], done["kv_tokens"], moved, moving)


def run_exactly(way: Way, words: str, seed: int) -> Run:
    """Plan the same requests with every byte where the policy wants it: no pages to fill, nothing to move."""
    outcome, timing = outcome_of(way, seed), timing_of(spec_of(way))
    plans = [
        plan(timing.board, timing.model, way.policy, moment, translated=way.translated)
        for moment in moments(outcome, seed)
    ]
    nothing = np.zeros(ITERATIONS)
    duration_s = np.array([each.iteration_s for each in plans])
    return Run(seed, words, duration_s, outcome.iterations["kv_tokens"], nothing, nothing)


def moments(outcome: Outcome, seed: int) -> list[IterationLoad]:
    """Return what each iteration had to do."""
    prompts, board = dynamic_trace(seed).prompt_tokens, original()
    first, last = outcome.requests["first_iteration"], outcome.requests["last_iteration"]
    loads = []
    for iteration in range(ITERATIONS):
        here = (first <= iteration) & (iteration <= last)
        # With the token that the iteration makes.
        lengths = prompts[here] + iteration - first[here] + 1
        loads.append(load_of(lengths.tolist(), board))
    return loads


def frame_of(runs: list[Run], baseline: str) -> pd.DataFrame:
    """Return a row for each iteration: how long it took, and how long the baseline did."""
    shape = model(MODEL)
    kv_bytes = 2 * shape.layers * shape.kv_size  # INT8
    slow = {each.seed: each.duration_s for each in runs if each.way == baseline}
    return stacked(
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
        for each in runs
    )


SEEDS = (1, 2, 3)
CHECKPOINTS = (1, 32, 64, 96, 128)
# A share of weights and of KV with which FlexGen's published average here would come out.
_FITTED_SHARE = 0.25
ONCE = Way("FlexGen, solved for the worst case", "flexgen", shares=flexgen_shares)
SMALLER = Way(f"FlexGen, {_FITTED_SHARE}", "flexgen", shares=lambda *_: (_FITTED_SHARE, _FITTED_SHARE))
# Without whole pages and columns, and without moving.
EXACTLY = {H2M2: "H2M2, to the byte", ORACLE: "Oracle, to the byte"}


def fig16(context: Context) -> Result:
    """Replay with memory management the same requests by every policy."""
    ways = (LPDDR_ONLY, ORACLE, H2M2, ONCE, STATIC, SMALLER)
    runs = [run(way, seed) for seed in SEEDS for way in ways]
    runs += [run_exactly(way, words, seed) for seed in SEEDS for way, words in EXACTLY.items()]
    frame = frame_of(runs, LPDDR_ONLY.words)
    source = how(
        f"points assumed: lengths uniform in 1 to {LONGEST}, one request in {ITERATIONS} ends with each "
        "iteration",
        also=(OF_TRANSLATION, OF_FLEXGEN),
    )
    # An average for each seed; claims are from the lowest to the highest.
    average = frame.groupby(["way", "seed"], sort=False)["speed_up"].mean()
    mapped = frame[frame["way"] == H2M2.words]
    per_seed = mapped.groupby("seed")
    changes = (mapped["moved_gb"] > 0).groupby(mapped["seed"]).sum()
    names = {"replayed": H2M2.words, "exact": EXACTLY[H2M2], "static": STATIC.words, "smaller": SMALLER.words}
    values = {
        "source": source,
        "other": _loaded_otherwise(),
        "column": _column(),
        "share": SHARE,
        "average": {name: average[words] for name, words in names.items()},
        "of_oracle": average[H2M2.words] / average[ORACLE.words],
        "of_oracle_exact": average[EXACTLY[H2M2]] / average[EXACTLY[ORACLE]],
        "worst_case": WORST_CASE,
        "once": ends(average[ONCE.words]),
        "course": ends(mapped["speed_up"]),
        "moving": ends(100 * per_seed["moving_ms"].sum() / per_seed["iteration_ms"].sum()),
        "changes": ends(changes),
        "moved_gb": {"mean": mapped["moved_gb"].mean(), "most": mapped["moved_gb"].max()},
        "top": 1.25 * frame["kv_gb"].max(),
    }
    shown = mapped[mapped["iteration"].isin(CHECKPOINTS)]
    return Result(frame, values, {"checkpoints": shown})


def _loaded_otherwise() -> str:
    """Return H2M2's and Oracle's averages to the byte, which need no other replay, of the first seed."""
    board, shape = loaded_otherwise(original()), model(MODEL)
    outcome, seed = outcome_of(H2M2, SEEDS[0]), SEEDS[0]
    averages = dict.fromkeys((H2M2, ORACLE), 0.0)
    for moment in moments(outcome, seed):
        alone = plan(board, shape, LPDDR_ONLY.policy, moment).iteration_s
        for way in averages:
            ours = plan(board, shape, way.policy, moment, translated=way.translated).iteration_s
            averages[way] += alone / ours / ITERATIONS
    return under_the_other_load({f"{EXACTLY[way]}, seed {seed}:": mean for way, mean in averages.items()})


def _column() -> int:
    """Return the tokens for which KV is allocated at once: a page for each layer and head."""
    native, shape = original().native(), shape_of(model(MODEL))
    return int(_sim.H2m2Memory.slots_of_column(native, shape))
