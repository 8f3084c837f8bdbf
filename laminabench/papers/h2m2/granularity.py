"""H2M2's section 3: whole sublayers or heads, FlexGen's mapping, one sublayer in HBM (figures 6 to 8)."""

from __future__ import annotations

from laminabench.catalog.find_model import model
from laminabench.catalog.models import ModelShape
from laminabench.papers.context import Context
from laminabench.papers.h2m2.speeds import (
    BEST,
    GRID,
    GRID_LENGTHS,
    OF_FLEXGEN,
    Way,
    how,
    means,
    original,
    other_speed_ups,
    speed_ups,
)
from laminabench.papers.paper import Result
from laminabench.systems.modelled.h2m2.boards import Board
from laminabench.systems.modelled.h2m2.mapping import IterationLoad, flexgen_shares, uniform

_MODEL = "gpt3-175b"
NAIVE = Way("Naive", "naive")


def fig6(context: Context) -> Result:
    """Compute both granularities at every point, each with the mapping that is best for it."""
    frame = speed_ups((NAIVE, BEST), _MODEL, GRID)
    average, published = means(frame), context.published("h2m2-fig6")
    naive = frame[frame["way"] == NAIVE.words].set_index(["batch", "length"])["speed_up"]
    values = {
        "source": how(GRID_LENGTHS),
        "other": other_speed_ups((BEST, NAIVE), _MODEL, GRID),
        "average": average,
        "published_ratio": published["Best"] / published["Naive"],
        "ratio": average["Best"] / average["Naive"],
        "naive": (naive.min(), naive.max()),
        "naive_alone": naive.loc[(32, 1024)],
    }
    return Result(frame, values)


# Of weights and of KV in HBM at all points: fitted to the published average.
SHARE = original().flexgen_share


def _worst_case(board: Board, shape: ModelShape, _: IterationLoad) -> tuple[float, float]:
    return flexgen_shares(board, shape, uniform(*GRID[-1], board))


SOLVED = Way("FlexGen, solved at each point", "flexgen", shares=flexgen_shares)
ONCE = Way("FlexGen, solved for the largest point", "flexgen", shares=_worst_case)
STATIC = Way(f"FlexGen, {SHARE} of weights and KV", "flexgen", shares=lambda *_: (SHARE, SHARE))


def fig7(context: Context) -> Result:
    """Compute three readings of what the paper says: FlexGen solves a programme, its mapping is static."""
    frame = speed_ups((SOLVED, ONCE, STATIC, BEST), _MODEL, GRID)
    average = means(frame)
    table = frame.pivot_table(index=["batch", "length"], columns="way", values="speed_up")
    ratio = table[STATIC.words] / table[BEST.words]
    names = {"solved": SOLVED, "once": ONCE, "static": STATIC, "best": BEST}
    values = {
        "source": how(GRID_LENGTHS, also=(OF_FLEXGEN,)),
        "other": other_speed_ups((BEST, SOLVED), _MODEL, GRID),
        "share": SHARE,
        "average": {name: average[way.words] for name, way in names.items()},
        "solved_ratio": average[SOLVED.words] / average[BEST.words],
        "reached": (ratio.loc[GRID[0]], ratio.loc[GRID[-1]]),
    }
    return Result(frame, values)


_MAJORS = (Way("A-major", "a-major"), Way("Q-major", "q-major"), Way("F-major", "f-major"))


def fig8(context: Context) -> Result:
    """Compute one sublayer in HBM as far as it fits, and the best of all mappings, at every point."""
    frame = speed_ups((BEST, *_MAJORS), _MODEL, GRID)
    average, heads = means(frame), model(_MODEL).heads
    values = {
        "source": how(GRID_LENGTHS),
        "other": other_speed_ups((BEST, *_MAJORS), _MODEL, GRID),
        "average": average,
        "ratio": average["A-major"] / average["Best"],
        "mappings": float(heads**3),
        "choices": heads + 1,
        "searched": (heads + 1) ** 3,
    }
    return Result(frame, values)
