"""H2M2's section 5.5: the board and eight HBM devices, in speed (figure 18) and memory's energy (19)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from laminabench.catalog.find_model import model
from laminabench.papers.context import Context
from laminabench.papers.h2m2.speeds import (
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
from laminabench.papers.paper import Result
from laminabench.systems.modelled.h2m2.boards import Board
from laminabench.systems.modelled.h2m2.mapping import footprint


def fig18(context: Context) -> Result:
    """Compute both at the assumed lengths; the eight devices also without communication between them."""
    points = points_of(GPT3)
    frame = speed_ups((H2M2, EIGHT_HBM), GPT3.model, points)
    eight = frame["way"] == EIGHT_HBM.words
    silent = replace(original(), hbm_barrier_s=0.0)
    frame.loc[eight, "lowest"] = frame.loc[eight, "speed_up"]
    frame.loc[eight, "highest"] = [speed_up(EIGHT_HBM, GPT3.model, point, silent) for point in points]
    average = means(frame)
    values = {
        "source": how(lengths_text(GPT3), also=(OF_TRANSLATION, OF_EIGHT_HBM)),
        "other": other_speed_ups((H2M2, EIGHT_HBM), GPT3.model, points),
        "average": average,
        "ratio": average[EIGHT_HBM.words] / average[H2M2.words],
        "silent": frame["highest"].mean(),
        "h2m2": context.published("h2m2-fig12")[H2M2.words],
    }
    return Result(frame, values)


BUSY, ALWAYS, BYTES = "while it is busy", "all the time", "by the byte"


class Use(NamedTuple):
    """The LPDDR and HBM use of an iteration, in device-seconds or bytes: alone, on the board, on eight."""

    lpddr_only: float
    h2m2: tuple[float, float]
    eight_hbm: float


def fig19(context: Context) -> Result:
    """Compute every way to count, each with HBM's part fitted to what the paper says of eight devices."""
    stated = context.published("h2m2-fig19")[EIGHT_HBM.words]
    frame = pd.concat([_frame(count, stated) for count in _COUNTS], ignore_index=True)
    board = original()
    busy = [_busy(point, loaded_otherwise(board)) for point in points_of(GPT3)]
    ratio = board.memory_power_ratio
    other = under_the_other_load(
        {
            H2M2.words: _mean([(use.h2m2[0] + ratio * use.h2m2[1]) / use.lpddr_only for use in busy]),
            EIGHT_HBM.words: _mean([ratio * use.eight_hbm / use.lpddr_only for use in busy]),
        }
    )
    averages = frame.groupby(["counted", "way"])["energy"].mean()
    values = {
        "source": how(lengths_text(GPT3), also=(OF_TRANSLATION, OF_EIGHT_HBM, OF_ENERGY)),
        "other": other,
        "energy": {way: averages[BUSY, way] for way in (H2M2.words, EIGHT_HBM.words)},
        "always": averages[ALWAYS, H2M2.words],
        "bytes": averages[BYTES, H2M2.words],
        "power_ratio": ratio,
        "by_byte": ratio * board.lpddr.bandwidth_bytes_per_s / board.hbm.bandwidth_bytes_per_s,
    }
    return Result(frame, values)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _frame(count: str, stated: float) -> pd.DataFrame:
    """Return the energy of H2M2 and of eight devices over that of LPDDR alone, at every length.

    The board's ratio of powers is for memories that take power while they are busy. Where energy is counted
    otherwise, HBM's part is fitted anew to the average that is stated of eight devices.
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
        ratio = stated / frame[frame["way"] == EIGHT_HBM.words]["hbm"].mean()
    return frame.assign(hbm_over_lpddr=ratio, energy=frame["lpddr"] + ratio * frame["hbm"])


def _busy(point: tuple[int, int], on: Board | None = None) -> Use:
    """Count each side as long as it computes or reads; all of eight devices, as each has a part of all."""
    alone, board, eight = (plan_of(way, GPT3.model, point, on) for way in (LPDDR_ONLY, H2M2, EIGHT_HBM))
    devices = original().hbm_devices
    return Use(alone.lpddr_busy_s, (board.lpddr_busy_s, board.hbm_busy_s), devices * eight.iteration_s)


def _always(point: tuple[int, int]) -> Use:
    """Count everything that there is as long as an iteration takes."""
    alone, board, eight = (
        plan_of(way, GPT3.model, point).iteration_s for way in (LPDDR_ONLY, H2M2, EIGHT_HBM)
    )
    return Use(alone, (board, board), original().hbm_devices * eight)


def _bytes(point: tuple[int, int]) -> Use:
    """Count every byte of weights and KV once an iteration, where it is."""
    batch, length = point
    total = sum(footprint(model(GPT3.model), batch * length).values())
    on_hbm = sum(plan_of(H2M2, GPT3.model, point).hbm_bytes.values())
    return Use(total, (total - on_hbm, on_hbm), total)


_COUNTS: Mapping[str, Callable[[tuple[int, int]], Use]] = {BUSY: _busy, ALWAYS: _always, BYTES: _bytes}
