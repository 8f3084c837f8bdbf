"""Common parts of H2M2's figures: models, batches and lengths, and a board's speed-up over LPDDR alone.

Sequence lengths are in no text of the paper. Those of section 5 were in the grid on which the board's open
parameters were fitted to its averages, so they are fitted as well; those of section 3 are assumed. Every
caption names them, and `h2m2-sensitivity` varies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import pandas as pd

from laminabench.catalog.find_model import model
from laminabench.catalog.models import ModelShape
from laminabench.systems.modelled.h2m2.boards import Board, board
from laminabench.systems.modelled.h2m2.mapping import IterationLoad, Plan, plan, uniform

BASELINE = "lpddr"


@dataclass(frozen=True, slots=True)
class Case:
    """A model as section 5 decodes it."""

    model: str
    words: str  # its name in the paper
    batch: int
    lengths: tuple[int, ...]  # fitted, in one grid with the board's open parameters


GPT3 = Case("gpt3-175b", "GPT3-175B", 32, (512, 1024, 1536, 2048))
CHINCHILLA = Case("chinchilla-70b", "Chinchilla-70B", 64, tuple(range(512, 4097, 512)))
LLAMA = Case("llama2-70b", "Llama2-70B", 128, (512, 1024, 2048, 4096))
CASES = (GPT3, CHINCHILLA, LLAMA)
# Section 3's batches and lengths of GPT3-175B; only the first pair is in the text.
GRID = tuple((batch, length) for batch in (16, 32, 64) for length in (512, 1024, 2048))
GRID_LENGTHS = "points assumed: 512, 1024, 2048 tokens at batches of 16, 32, 64"

Shares = Callable[[Board, ModelShape, IterationLoad], tuple[float, float]]


class Way(NamedTuple):
    """One way in which a board, or a system compared with it, decodes."""

    words: str  # in legends
    policy: str
    translated: bool = False  # TLB misses cost time
    shares: Shares | None = None  # FlexGen's, at each point


LPDDR_ONLY = Way("LPDDR-only", BASELINE)
HIERARCHICAL = Way("Hierarchical", "hierarchical")
# The paper's Oracle translates addresses for nothing; in section 3 it is called Best.
ORACLE, BEST = Way("Oracle", "oracle"), Way("Best", "oracle")
H2M2 = Way("H2M2", "greedy", translated=True)
EIGHT_HBM = Way("8-HBM", "8-hbm")


@cache
def original() -> Board:
    """Return the board of tables 1 and 2."""
    return board("h2m2")


@cache
def plan_of(way: Way, model_name: str, point: tuple[int, int], on: Board | None = None) -> Plan:
    """Plan an iteration of so many requests of one length, decoder layers only as in the paper."""
    where, shape = on or original(), model(model_name)
    moment = uniform(*point, where)
    shares = None if way.shares is None else way.shares(where, shape, moment)
    return plan(where, shape, way.policy, moment, translated=way.translated, shares=shares)


@cache
def baseline_s(model_name: str, point: tuple[int, int]) -> float:
    """Return the seconds of an iteration on LPDDR alone, always of the unchanged board."""
    return plan_of(LPDDR_ONLY, model_name, point).iteration_s


def speed_up(way: Way, model_name: str, point: tuple[int, int], on: Board | None = None) -> float:
    """Return how many times as fast as LPDDR alone it is."""
    return baseline_s(model_name, point) / plan_of(way, model_name, point, on).iteration_s


def points_of(case: Case) -> tuple[tuple[int, int], ...]:
    """Return a case's batch at each of its lengths."""
    return tuple((case.batch, length) for length in case.lengths)


def speed_ups(
    ways: Sequence[Way], model_name: str, points: Iterable[tuple[int, int]], on: Board | None = None
) -> pd.DataFrame:
    """Return a row for every point and way."""
    plans = ((point, way, plan_of(way, model_name, point, on)) for point in points for way in ways)
    return pd.DataFrame(
        {
            "model": model_name,
            "batch": point[0],
            "length": point[1],
            "way": way.words,
            "iteration_ms": 1000 * planned.iteration_s,
            "speed_up": baseline_s(model_name, point) / planned.iteration_s,
            "qkv_on_hbm": planned.mapping.qkv,
            "attention_on_hbm": planned.mapping.attention,
            "fc_on_hbm": planned.mapping.fc,
        }
        for point, way, planned in plans
    )


def means(frame: pd.DataFrame) -> dict[str, float]:
    """Return the average speed-up of each way: an average of ratios, not a ratio of averages."""
    averages = frame.groupby("way", sort=False)["speed_up"].mean()
    return {str(way): float(mean) for way, mean in averages.items()}


def lengths_text(*cases: Case) -> str:
    """Return section 5's lengths for a caption."""
    each = [f"{case.words} {_list(case.lengths)} tokens at batch {case.batch}" for case in cases]
    return f"lengths fitted on one grid with these: {'; '.join(each)}"


def _list(lengths: tuple[int, ...]) -> str:
    step = lengths[1] - lengths[0]
    if len(lengths) > 4 and lengths == tuple(range(lengths[0], lengths[-1] + 1, step)):
        return f"{lengths[0]} to {lengths[-1]} by {step}"
    return ", ".join(map(str, lengths))


# Parameters that are not the paper's, and that every iteration's time depends on.
_ALWAYS = ("dram_efficiency", "weight_load", "launch_us", "kernels")
# Those that only some do.
OF_TRANSLATION, OF_GQA, OF_HIERARCHICAL, OF_FLEXGEN, OF_EIGHT_HBM, OF_ENERGY = (
    *("tlb_misses_at_once", "reread_kv", "hierarchical_overlap", "flexgen_share", "hbm_barrier_us"),
    "memory_power_ratio",
)


def how(*points: str, also: Sequence[str] = ()) -> str:
    """Return what a figure's numbers come from: parameters that are not the paper's, by name and value.

    `also` names those that this figure depends on in addition to those of all; `points` says which its points
    are.
    """
    parts = ["modelled: times from the paper's tables 1 and 2"]
    for kind in ("fitted", "assumed"):
        rows = [row for row in original().assumptions() if row["kind"] == kind]
        named = [f"{row['name']} {_value(row['value'])}" for row in rows if row["name"] in (*_ALWAYS, *also)]
        parts.append(f"{kind}: {', '.join(named)}")
    return "; ".join([*parts, *points])


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def mean_speed_up_assuming(way: Way, case: Case, assumed: Board) -> float:
    """Return the average speed-up over LPDDR alone of the same assumed board."""
    return mean_speed_up_at(way, case.model, points_of(case), assumed)


def mean_speed_up_at(
    way: Way, model_name: str, points: Sequence[tuple[int, int]], assumed: Board, fixed: Board | None = None
) -> float:
    """Return the average at any points; over the LPDDR of the `fixed` board where there is one."""
    each = [
        plan_of(LPDDR_ONLY, model_name, point, fixed or assumed).iteration_s
        / plan_of(way, model_name, point, assumed).iteration_s
        for point in points
    ]
    return sum(each) / len(each)


# How a systolic array gets its weights is not in the paper's text; which of two readings is the other one.
_LOADS = {"before": "behind", "behind": "before"}


def loaded_otherwise(board: Board) -> Board:
    """Return the board with the other reading of how arrays get their weights."""
    return replace(board, weight_load=_LOADS[board.weight_load])


def under_the_other_load(numbers: Mapping[str, float], unit: str = "times") -> str:
    """Return a figure's main numbers on the board that is `loaded_otherwise`, for its caption."""
    each = ", ".join(f"{words} {number:.2f} {unit}" for words, number in numbers.items())
    assumed, other = original().weight_load, loaded_otherwise(original()).weight_load
    return (
        f"Of two readings of how an array gets its weights, weight_load {assumed} is assumed; {other}: {each}"
    )


def other_speed_ups(ways: Sequence[Way], model_name: str, points: Sequence[tuple[int, int]]) -> str:
    """Return averages over LPDDR alone on the board that is `loaded_otherwise`, for a caption."""
    board = loaded_otherwise(original())
    return under_the_other_load({way.words: mean_speed_up_at(way, model_name, points, board) for way in ways})
