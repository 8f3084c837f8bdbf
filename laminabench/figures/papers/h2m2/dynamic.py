"""H2M2's dynamic scenario (figure 16), replayed: requests of all lengths end at random and are replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from laminabench import _sim
from laminabench.catalog.cost_file import DEFAULT_COSTS, load_costs
from laminabench.catalog.find_model import model
from laminabench.figures.claims import Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.granularity import SHARE, STATIC
from laminabench.figures.papers.h2m2.ground import (
    BOARD,
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
from laminabench.figures.papers.spans import ends, stacked
from laminabench.figures.style import (
    BLUE,
    GREEN,
    INK,
    OVER_GRID,
    PAGE,
    VERMILION,
    Looks,
    published_line,
    sentence,
    sheet,
)
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
_LOOKS: dict[str, Looks] = {
    ORACLE.words: {"color": BLUE},
    H2M2.words: {"color": GREEN},
    EXACTLY[H2M2]: {"color": GREEN, "ls": (0, (4, 2)), "lw": 0.9},
    STATIC.words: {"color": VERMILION},
}
_PUBLISHED = {H2M2.words: 1.48, "FlexGen": 1.25}


def fig16(ground: Ground) -> Made:
    """Replays with memory management, of the same requests by every policy."""
    ways = (LPDDR_ONLY, ORACLE, H2M2, ONCE, STATIC, SMALLER)
    runs = [run(way, seed) for seed in SEEDS for way in ways]
    runs += [run_exactly(way, words, seed) for seed in SEEDS for way, words in EXACTLY.items()]
    frame = frame_of(runs, LPDDR_ONLY.words)
    source = how(
        f"points assumed: lengths uniform in 1 to {LONGEST}, one request in {ITERATIONS} ends with each "
        "iteration",
        also=(OF_TRANSLATION, OF_FLEXGEN),
    )
    return Made(
        frame,
        _claims(frame, f"{source}; {len(SEEDS)} seeds"),
        f"{sentence(source)}. {_loaded_otherwise()}. Replayed with page tables, KV in columns of "
        f"{_column()} tokens, and moves "
        "between the sides that stall the next iteration; to the byte: without these. FlexGen's share is "
        "the one fitted to figure 7.",
        _draw,
    )


def _loaded_otherwise() -> str:
    """H2M2's and Oracle's averages to the byte, which no replay has to be made for, of the first seed."""
    board, shape = loaded_otherwise(original()), model(MODEL)
    outcome, seed = outcome_of(H2M2, SEEDS[0]), SEEDS[0]
    found = dict.fromkeys((H2M2, ORACLE), 0.0)
    for moment in moments(outcome, seed):
        alone = plan(board, shape, LPDDR_ONLY.policy, moment).iteration_s
        for way in found:
            mine = plan(board, shape, way.policy, moment, translated=way.translated).iteration_s
            found[way] += alone / mine / ITERATIONS
    return under_the_other_load({f"{EXACTLY[way]}, seed {seed}:": mean for way, mean in found.items()})


def _column() -> int:
    """Tokens for which KV is allocated at once: a page for each layer and head."""
    native, shape = original().native(), shape_of(model(MODEL))
    return int(_sim.H2m2Memory.slots_of_column(native, shape))


def _claims(frame: pd.DataFrame, source: str) -> list[Claim]:
    # An average for each seed; claims are from the lowest to the highest.
    average = frame.groupby(["way", "seed"], sort=False)["speed_up"].mean()
    replayed, oracle = average[H2M2.words], average[ORACLE.words]
    exact, exact_oracle = average[EXACTLY[H2M2]], average[EXACTLY[ORACLE]]
    of_pages = (
        f"Replayed, KV comes in columns of {_column()} tokens, of which the last is half empty on average; "
        "how the paper lays KV out is not in its text."
    )
    of_flexgen = (
        f"Its share is not in the text. Solved once for {WORST_CASE[0]} requests of {WORST_CASE[1]} tokens "
        f"it comes to {_span(average[ONCE.words])}; the published average needs a share near "
        f"{_FITTED_SHARE}, not the {SHARE} of figure 7."
    )
    fitted = "This share is fitted to the published average."
    mine, flexgen = _PUBLISHED.values()
    mapped = frame[frame["way"] == H2M2.words]
    per_seed = mapped.groupby("seed")
    moving = 100 * per_seed["moving_ms"].sum() / per_seed["iteration_ms"].sum()
    changes = (mapped["moved_gb"] > 0).groupby(mapped["seed"]).sum()
    says = Section("section 5.3", source, "performance", BOARD)
    return [
        says("speed-up of H2M2, average: replayed", mine, replayed, remark=of_pages),
        says("the same: to the byte", mine, exact),
        says("H2M2 over Oracle: replayed", 0.96, replayed / oracle, remark=of_pages),
        says("the same: to the byte", 0.96, exact / exact_oracle),
        says(
            f"speed-up of FlexGen, average: {SHARE} of weights and of KV in HBM",
            flexgen,
            average[STATIC.words],
            remark=of_flexgen,
        ),
        says(f"the same: {_FITTED_SHARE}", flexgen, average[SMALLER.words], remark=fitted, fitted=True),
        says("speed-up of H2M2 over the iterations", '"stable"', _span(mapped["speed_up"])),
        says(
            "what mapping, allocation and migration take",
            '"minimal impact"',
            f"{_span(moving)} % of the time is moving; data moves before "
            f"{changes.min()} to {changes.max()} of {ITERATIONS} iterations, "
            f"{mapped['moved_gb'].mean():.2f} GB an iteration, at most {mapped['moved_gb'].max():.1f} GB",
            where="section 4.2.2",
        ),
    ]


def _span(values: pd.Series[float]) -> str:
    low, high = ends(values)
    return f"{low:.2f} to {high:.2f}"


def _draw(frame: pd.DataFrame) -> Figure:
    """Speed-ups above, the KV that causes them below; a column for each seed."""
    figure, axes = sheet(
        2, len(SEEDS), width=PAGE, height=3.6, sharex=True, sharey="row", height_ratios=(3, 2)
    )
    for (above, below), (seed, mine) in zip(axes.T, frame.groupby("seed"), strict=True):
        _speed_ups(above, mine)
        _kv(below, mine[mine["way"] == H2M2.words])
        above.set_title(f"seed {seed}")
        below.set(xlabel="iteration", xlim=(-8, ITERATIONS + 9), xticks=CHECKPOINTS)
    axes[0][0].set(ylabel="speed-up over LPDDR-only", ylim=(1, None))
    axes[1][0].set(ylabel="KV, GB", ylim=(0, 1.25 * frame["kv_gb"].max()))
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
    return figure


def _speed_ups(axes: Axes, frame: pd.DataFrame) -> None:
    for way, look in _LOOKS.items():
        mine = frame[frame["way"] == way]
        axes.plot(mine["iteration"], mine["speed_up"], label=way, **{"lw": 1.1, **look})
    for place, (name, value) in enumerate(_PUBLISHED.items()):
        published_line(axes, value, "published averages" if place == 0 else f"_{name}")


def _kv(axes: Axes, frame: pd.DataFrame) -> None:
    axes.plot(frame["iteration"], frame["kv_gb"], color=INK, lw=1)
    shown = frame[frame["iteration"].isin(CHECKPOINTS)]
    words: Looks = {"ha": "center", "fontsize": 6, "color": INK, "bbox": {**OVER_GRID, "pad": 0}}
    for place in zip(shown["iteration"], shown["kv_gb"], strict=True):
        axes.plot(*place, "o", color=INK, markersize=3)
        axes.annotate(f"{place[1]:.0f}", place, xytext=(0, 4), textcoords="offset points", **words)
