"""H2M2's section 5.5: the board beside eight HBM devices, in speed (figure 18) and memory's energy (19)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from laminabench.catalog.find_model import model
from laminabench.figures.claims import Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.bars import DOTS, bars_of_lengths, legend_entries
from laminabench.figures.papers.h2m2.ground import (
    BOARD,
    COLOURS,
    EIGHT_HBM,
    GPT3,
    H2M2,
    LPDDR_ONLY,
    OF_EIGHT_HBM,
    OF_ENERGY,
    OF_TRANSLATION,
    how,
    lengths_text,
    loaded_otherwise,
    means,
    original,
    other_speed_ups,
    plan_of,
    points_of,
    speed_up,
    speed_ups,
    under_the_other_load,
)
from laminabench.figures.style import PAGE, sentence, sheet
from laminabench.systems.modelled.h2m2.boards import Board
from laminabench.systems.modelled.h2m2.mapping import footprint

_WHERE = "section 5.5"
_SPEED_UPS = {H2M2.words: 1.46, EIGHT_HBM.words: 2.29}


def fig18(ground: Ground) -> Made:
    """Both at the assumed lengths; the eight devices also without communication between them."""
    points = points_of(GPT3)
    frame = speed_ups((H2M2, EIGHT_HBM), GPT3.model, points)
    eight = frame["way"] == EIGHT_HBM.words
    silent = replace(original(), hbm_barrier_s=0.0)
    frame.loc[eight, "lowest"] = frame.loc[eight, "speed_up"]
    frame.loc[eight, "highest"] = [speed_up(EIGHT_HBM, GPT3.model, point, silent) for point in points]
    obtained = how(lengths_text(GPT3), also=(OF_TRANSLATION, OF_EIGHT_HBM))
    found = means(frame)
    mine, theirs = found[H2M2.words], found[EIGHT_HBM.words]
    remark = (
        "The cost of a barrier between the devices is fitted to this. Without communication it is "
        f"{frame['highest'].mean():.2f} times."
    )
    average = "8-HBM over LPDDR-only, GPT3-175B, average"
    says, both = Section(_WHERE, obtained, "performance", BOARD), "Both averages are fitted."
    claims = (
        says(average, _SPEED_UPS[EIGHT_HBM.words], theirs, "times", remark=remark, fitted=True),
        says("8-HBM's average over H2M2's", 1.57, theirs / mine, "times", remark=both, fitted=True),
    )
    other = other_speed_ups((H2M2, EIGHT_HBM), GPT3.model, points)
    words = f"{sentence(obtained)}. {other}. Lines end where 8-HBM would be without communication."
    return Made(frame, claims, words, _draw_fig18)


def _draw_fig18(frame: pd.DataFrame) -> Figure:
    """Bars by length, and the averages beside the paper's."""
    figure, axes = sheet(width=PAGE, height=2.6)
    bars_of_lengths(axes, frame, inches=PAGE, published=_SPEED_UPS)
    figure.legend(*legend_entries(axes), loc="outside upper left", ncols=4)
    return figure


_ENERGIES = {H2M2.words: 0.76, EIGHT_HBM.words: 1.31}
BUSY, ALWAYS, BYTES = "while it is busy", "all the time", "by the byte"


class Use(NamedTuple):
    """What an iteration takes of LPDDR and of HBM, device-seconds or bytes: alone, on the board, on eight."""

    lpddr_only: float
    h2m2: tuple[float, float]
    eight_hbm: float


def fig19(ground: Ground) -> Made:
    """Every way to count, each with HBM's part fitted to what the paper says of eight devices."""
    frame = pd.concat([_frame(count) for count in _COUNTS], ignore_index=True)
    obtained = how(lengths_text(GPT3), also=(OF_TRANSLATION, OF_EIGHT_HBM, OF_ENERGY))
    words = "Energy is what the memories take while they are busy, but on the right"
    busy = [_busy(point, loaded_otherwise(original())) for point in points_of(GPT3)]
    ratio = original().memory_power_ratio
    other = under_the_other_load(
        {
            H2M2.words: _mean([(use.h2m2[0] + ratio * use.h2m2[1]) / use.lpddr_only for use in busy]),
            EIGHT_HBM.words: _mean([ratio * use.eight_hbm / use.lpddr_only for use in busy]),
        }
    )
    return Made(frame, _claims(frame, obtained), f"{sentence(obtained)}. {other}. {words}.", _draw_fig19)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _frame(count: str) -> pd.DataFrame:
    """Energy of H2M2 and of eight devices over that of LPDDR alone, at every length.

    The board's ratio of powers is for memories that take power while they are busy. Where energy is counted
    otherwise, HBM's part is fitted anew to the same average.
    """
    rows = []
    for point in points_of(GPT3):
        use = _COUNTS[count](point)
        for way, (lpddr, hbm) in {H2M2: use.h2m2, EIGHT_HBM: (0.0, use.eight_hbm)}.items():
            where = {"counted": count, "way": way.words, "length": point[1]}
            rows.append({**where, "lpddr": lpddr / use.lpddr_only, "hbm": hbm / use.lpddr_only})
    frame = pd.DataFrame(rows)
    ratio = original().memory_power_ratio
    if count != BUSY:
        ratio = _ENERGIES[EIGHT_HBM.words] / frame[frame["way"] == EIGHT_HBM.words]["hbm"].mean()
    return frame.assign(hbm_over_lpddr=ratio, energy=frame["lpddr"] + ratio * frame["hbm"])


def _busy(point: tuple[int, int], on: Board | None = None) -> Use:
    """Each side as long as it computes or reads; of eight devices all, as each has a part of everything."""
    alone, board, eight = (plan_of(way, GPT3.model, point, on) for way in (LPDDR_ONLY, H2M2, EIGHT_HBM))
    devices = original().hbm_devices
    return Use(alone.lpddr_busy_s, (board.lpddr_busy_s, board.hbm_busy_s), devices * eight.iteration_s)


def _always(point: tuple[int, int]) -> Use:
    """Everything that there is as long as an iteration takes."""
    alone, board, eight = (
        plan_of(way, GPT3.model, point).iteration_s for way in (LPDDR_ONLY, H2M2, EIGHT_HBM)
    )
    return Use(alone, (board, board), original().hbm_devices * eight)


def _bytes(point: tuple[int, int]) -> Use:
    """Every byte of weights and KV is read once an iteration, from where it is."""
    batch, length = point
    whole = sum(footprint(model(GPT3.model), batch * length).values())
    on_hbm = sum(plan_of(H2M2, GPT3.model, point).hbm_bytes.values())
    return Use(whole, (whole - on_hbm, on_hbm), whole)


_COUNTS: Mapping[str, Callable[[tuple[int, int]], Use]] = {BUSY: _busy, ALWAYS: _always, BYTES: _bytes}


def _claims(frame: pd.DataFrame, obtained: str) -> list[Claim]:
    found = frame.groupby(["counted", "way"])["energy"].mean()
    board = original()
    ratio = board.memory_power_ratio
    by_byte = ratio * board.lpddr.bandwidth_bytes_per_s / board.hbm.bandwidth_bytes_per_s
    remarks = {
        H2M2.words: f"Counted {ALWAYS} it would be {found[ALWAYS, H2M2.words]:.2f} times, {BYTES} "
        f"{found[BYTES, H2M2.words]:.2f}, each with HBM's part fitted to 8-HBM's 1.31: of the three only the "
        "first gives both of the paper's averages, and was chosen for that.",
        EIGHT_HBM.words: f"The power of an HBM device, {ratio:g} of the LPDDR memory's, is fitted to the "
        "published averages of energy and time together: the paper has it from another, not printed. "
        f"At full bandwidth that is {by_byte:.2f} of LPDDR's energy for a byte.",
    }
    says = Section(_WHERE, obtained, "performance", BOARD)
    return [
        says(
            f"memory energy for a token, {way} over LPDDR-only, average",
            published,
            float(found[BUSY, way]),
            "times",
            remark=remarks[way],
            fitted=True,  # one by the ratio of powers, the other by the rule of counting
        )
        for way, published in _ENERGIES.items()
    ]


def _draw_fig19(frame: pd.DataFrame) -> Figure:
    """Bars by length and the averages, and beside them the averages of the other ways to count."""
    figure, (left, right) = sheet(1, 2, width=PAGE, height=2.7, width_ratios=(2.4, 1), sharey=True)
    busy = frame[frame["counted"] == BUSY]
    bars_of_lengths(left, busy, inches=0.68 * PAGE, column="energy", published=_ENERGIES)
    left.set_ylabel("energy over LPDDR-only")
    _counted(right, frame)
    figure.legend(*legend_entries(left), loc="outside upper left", ncols=4)
    return figure


def _counted(axes: Axes, frame: pd.DataFrame) -> None:
    """H2M2's average, however energy is counted; 8-HBM's is fitted in each."""
    averages = frame[frame["way"] == H2M2.words].groupby("counted", sort=False)["energy"].mean()
    places = range(len(averages))
    drawn = axes.bar(places, averages, 0.6, color=COLOURS[H2M2.words], linewidth=0)
    axes.bar_label(drawn, fmt="%.2f", fontsize=6, padding=2)
    axes.axhline(_ENERGIES[H2M2.words], **DOTS)
    axes.set_xticks(places, [count.replace(" ", "\n", 1) for count in averages.index])
    axes.set_xlabel("H2M2's average, counted")
    axes.grid(visible=False, axis="x")
