"""H2M2 Figure 16: iteration by iteration, while requests of all lengths end at random and are replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from laminabench import _sim
from laminabench.catalog.find_model import model
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.dynamic import MODEL, WORST_CASE, frame_of, run, run_exactly
from laminabench.figures.papers.h2m2.fig7 import SHARE, STATIC
from laminabench.figures.papers.h2m2.ground import (
    H2M2,
    LPDDR_ONLY,
    OF_FLEXGEN,
    OF_TRANSLATION,
    ORACLE,
    Way,
    how,
    original,
)
from laminabench.figures.papers.spans import ends
from laminabench.figures.style import (
    BLUE,
    GREEN,
    INK,
    OVER_GRID,
    PAGE,
    VERMILION,
    foot,
    published_line,
    sentence,
    sheet,
)
from laminabench.sim.h2m2 import ITERATIONS, LONGEST, flexgen_shares
from laminabench.sim.spec import shape_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Speed-up while requests end at random and are replaced, GPT3-175B"
SEEDS = (1, 2, 3)
CHECKPOINTS = (1, 32, 64, 96, 128)
# A share of weights and of KV with which FlexGen's published average here would come out.
_FITTED_SHARE = 0.25
ONCE = Way("FlexGen, solved for the worst case", "flexgen", shares=flexgen_shares)
SMALLER = Way(f"FlexGen, {_FITTED_SHARE}", "flexgen", shares=lambda *_: (_FITTED_SHARE, _FITTED_SHARE))
# Without whole pages and columns, and without moving.
EXACTLY = {H2M2: "H2M2, to the byte", ORACLE: "Oracle, to the byte"}
_LOOKS: dict[str, dict[str, Any]] = {
    ORACLE.words: {"color": BLUE},
    H2M2.words: {"color": GREEN},
    EXACTLY[H2M2]: {"color": GREEN, "ls": (0, (4, 2)), "lw": 0.9},
    STATIC.words: {"color": VERMILION},
}
_PUBLISHED = {H2M2.words: 1.48, "FlexGen": 1.25}
_PUBLISHED_RATIO = 0.96
_WHERE = "section 5.3"


def make(ground: Ground) -> Made:
    """Replays with memory management, of the same requests by every policy."""
    ways = (LPDDR_ONLY, ORACLE, H2M2, ONCE, STATIC, SMALLER)
    runs = [run(way, seed) for seed in SEEDS for way in ways]
    runs += [run_exactly(way, words, seed) for seed in SEEDS for way, words in EXACTLY.items()]
    frame = frame_of(runs, LPDDR_ONLY.words)
    source = how(
        f"lengths uniform in 1 to {LONGEST}, one request in {ITERATIONS} ends with each iteration",
        also=(OF_TRANSLATION, OF_FLEXGEN),
    )
    return Made(
        frame,
        _claims(frame, f"{source}; {len(SEEDS)} seeds"),
        f"{sentence(source)}. Replayed with page tables, KV in columns of {_column()} tokens, and moves "
        "between the sides that stall the next iteration; to the byte: without these. FlexGen's share is "
        "the one fitted to figure 7.",
    )


def _column() -> int:
    """Tokens for which KV is allocated at once: a page for each layer and head."""
    native, shape = original().native(), shape_of(model(MODEL))
    return int(_sim.H2m2Memory.slots_of_column(native, shape))


def _claims(frame: pd.DataFrame, source: str) -> tuple[Claim, ...]:
    # An average for each seed; claims are from the lowest to the highest.
    average = frame.groupby(["way", "seed"], sort=False)["speed_up"].mean()
    exact, oracle = average[EXACTLY[H2M2]], average[EXACTLY[ORACLE]]
    of_pages = (
        f"Replayed, KV comes in columns of {_column()} tokens, of which the last is half empty on average; "
        "how the paper lays KV out is not in its text."
    )
    of_flexgen = (
        f"Its share is not in the text. Solved once for {WORST_CASE[0]} requests of {WORST_CASE[1]} tokens "
        f"it comes to {_span(average[ONCE.words])}; the published average needs a share near "
        f"{_FITTED_SHARE}, not the {SHARE} of figure 7."
    )
    mine = _PUBLISHED[H2M2.words]
    return (
        _claim("speed-up of H2M2, average: replayed", mine, average[H2M2.words], source, of_pages),
        _claim("the same: to the byte", mine, exact, source),
        _claim(
            "H2M2 over Oracle: replayed",
            _PUBLISHED_RATIO,
            average[H2M2.words] / average[ORACLE.words],
            source,
            of_pages,
        ),
        _claim("the same: to the byte", _PUBLISHED_RATIO, exact / oracle, source),
        _claim(
            f"speed-up of FlexGen, average: {SHARE} of weights and of KV in HBM",
            _PUBLISHED["FlexGen"],
            average[STATIC.words],
            source,
            of_flexgen,
        ),
        replace(
            _claim(
                f"the same: {_FITTED_SHARE}",
                _PUBLISHED["FlexGen"],
                average[SMALLER.words],
                source,
                "This share is fitted to the published average.",
            ),
            fitted=True,
        ),
        *_qualities(frame, source),
    )


def _claim(what: str, published: float, ours: pd.Series[float], source: str, remark: str = "") -> Claim:
    return Claim(what, _WHERE, published, ends(ours), source, remark=remark)


def _qualities(frame: pd.DataFrame, source: str) -> tuple[Claim, ...]:
    mine = frame[frame["way"] == H2M2.words]
    per_seed = mine.groupby("seed")
    moving = 100 * per_seed["moving_ms"].sum() / per_seed["iteration_ms"].sum()
    changes = (mine["moved_gb"] > 0).groupby(mine["seed"]).sum()
    return (
        Claim(
            "speed-up of H2M2 over the iterations",
            _WHERE,
            '"stable"',
            f"{mine['speed_up'].min():.2f} to {mine['speed_up'].max():.2f}",
            source,
        ),
        Claim(
            "what mapping, allocation and migration take",
            "section 4.2",
            '"minimal impact"',
            f"{moving.min():.2f} to {moving.max():.2f} % of the time is moving; data moves before "
            f"{changes.min()} to {changes.max()} of {ITERATIONS} iterations, "
            f"{mine['moved_gb'].mean():.2f} GB an iteration, at most {mine['moved_gb'].max():.1f} GB",
            source,
        ),
    )


def _span(values: pd.Series[float]) -> str:
    low, high = ends(values)
    return f"{low:.2f} to {high:.2f}"


def draw(made: Made) -> Figure:
    """Speed-ups above, the KV that causes them below; a column for each seed."""
    figure, axes = sheet(
        2, len(SEEDS), width=PAGE, height=3.6, sharex=True, sharey="row", height_ratios=(3, 2)
    )
    for column, seed in enumerate(SEEDS):
        mine = made.frame[made.frame["seed"] == seed]
        _speed_ups(axes[0][column], mine)
        _kv(axes[1][column], mine[mine["way"] == H2M2.words])
        axes[0][column].set_title(f"seed {seed}")
        axes[1][column].set(xlabel="iteration", xlim=(-8, ITERATIONS + 9), xticks=CHECKPOINTS)
    axes[0][0].set(ylabel="speed-up over LPDDR-only", ylim=(1, None))
    axes[1][0].set(ylabel="KV, GB", ylim=(0, 1.25 * made.frame["kv_gb"].max()))
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
    foot(figure, made.how)
    return figure


def _speed_ups(axes: Axes, frame: pd.DataFrame) -> None:
    for way, look in _LOOKS.items():
        mine = frame[frame["way"] == way]
        axes.plot(mine["iteration"], mine["speed_up"], label=way, **{"lw": 1.1, **look})
    for place, (name, value) in enumerate(_PUBLISHED.items()):
        published_line(axes, value, "published averages" if place == 0 else f"_{name}")


def _kv(axes: Axes, frame: pd.DataFrame) -> None:
    axes.plot(frame["iteration"], frame["kv_gb"], color=INK, lw=1)
    for iteration, kv_gb in frame.loc[
        frame["iteration"].isin(CHECKPOINTS), ["iteration", "kv_gb"]
    ].itertuples(index=False):
        axes.plot(iteration, kv_gb, "o", color=INK, markersize=3)
        axes.annotate(
            f"{kv_gb:.0f}",
            (iteration, kv_gb),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=6,
            color=INK,
            bbox={**OVER_GRID, "pad": 0},
        )
