"""Figures 12, 13 and 15 are one figure of three models: H2M2, Hierarchical and Oracle over LPDDR alone.

Figure 14 is what is in HBM meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pandas as pd

from laminabench.catalog.hardware import GB
from laminabench.papers.context import Context
from laminabench.papers.h2m2.speeds import (
    CHINCHILLA,
    GPT3,
    H2M2,
    HIERARCHICAL,
    LLAMA,
    OF_GQA,
    OF_HIERARCHICAL,
    OF_TRANSLATION,
    ORACLE,
    Case,
    how,
    lengths_text,
    loaded_otherwise,
    mean_speed_up_assuming,
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

WAYS = (HIERARCHICAL, H2M2, ORACLE)
# Of migration and computing: nothing at once, or all that can be.
OVERLAPS = {"lowest": 0.0, "highest": 1.0}
STEP = 32  # tokens from length to length: the rows of an MV unit
# By model, the figure that has what section 5.2 states of it: averages over LPDDR alone, and over Oracle.
FIGURES = {GPT3.model: "h2m2-fig12", CHINCHILLA.model: "h2m2-fig13", LLAMA.model: "h2m2-fig15"}


def fig12(context: Context) -> Result:
    """Compute GPT3-175B, with the average over Hierarchical's that section 7 states of it."""
    return _result(GPT3, frame_of(GPT3))


def fig13(context: Context) -> Result:
    """Compute Chinchilla-70B, and up to which length Hierarchical leads."""
    frame = frame_of(CHINCHILLA)
    leads = hierarchical_leads(frame)
    until = float(leads.index.max()) if len(leads) else 0.0
    return _result(CHINCHILLA, frame, step=STEP, until=until, most=leads.max())


def fig15(context: Context) -> Result:
    """Compute Llama2-70B, whose query heads share KV, and at which lengths Hierarchical leads."""
    frame = frame_of(LLAMA)
    leads = hierarchical_leads(frame)
    led = "none"
    if len(leads):
        led = f"at {leads.index.min()} to {leads.index.max()} tokens, by up to {leads.max():.1f} %"
    once = mean_speed_up_assuming(H2M2, LLAMA, replace(original(), reread_kv=False))
    return _result(LLAMA, frame, OF_GQA, led=led, once=once)


def _result(case: Case, frame: pd.DataFrame, *also: str, **more: Any) -> Result:
    shown = frame[frame["averaged"]]
    average = means(shown)
    low, high = shown[list(OVERLAPS)].mean()
    values = {
        "source": how(lengths_text(case), also=(OF_TRANSLATION, OF_HIERARCHICAL, *also)),
        "other": other_speed_ups((H2M2, ORACLE), case.model, points_of(case)),
        "average": average,
        "of_oracle": average[H2M2.words] / average[ORACLE.words],
        "of_hierarchical": average[H2M2.words] / average[HIERARCHICAL.words],
        "overlaps": (low, high),
        **more,
    }
    return Result(frame, values)


@cache
def overlapping(overlap: float) -> Board:
    """Return the board with another share of Hierarchical's migration hidden."""
    return replace(original(), hierarchical_overlap=overlap)


def frame_of(case: Case) -> pd.DataFrame:
    """Return every way at the lengths that averages are over, and between them for lines.

    Of Hierarchical also without any overlap and with all there can be.
    """
    longest = max(case.lengths)
    points = [(case.batch, length) for length in range(STEP, longest + 1, STEP)]
    assert set(points_of(case)) <= set(points)
    frame = speed_ups(WAYS, case.model, points)
    frame["averaged"] = frame["length"].isin(case.lengths)
    hierarchical = frame["way"] == HIERARCHICAL.words
    for column, overlap in OVERLAPS.items():
        board = overlapping(overlap)
        frame.loc[hierarchical, column] = [
            speed_up(HIERARCHICAL, case.model, point, board) for point in points
        ]
    return frame


def hierarchical_leads(frame: pd.DataFrame) -> pd.Series[float]:
    """Return by how many per cent Hierarchical is the faster, at the lengths where it is."""
    table = frame.pivot_table(index="length", columns="way", values="speed_up")
    more: pd.Series[float] = 100 * (table[HIERARCHICAL.words] / table[H2M2.words] - 1)
    return more[more > 0]


# Closer together than those of figure 12, to show where a sublayer leaves HBM.
_CLOSE = tuple(range(128, 2049, 128))
_SUBLAYERS = ("attention", "qkv", "fc")


def fig14(context: Context) -> Result:
    """Compute what is in HBM with the mapping of H2M2, and with the best one, at every length."""
    rows = []
    for way in (H2M2, ORACLE):
        for length in _CLOSE:
            in_hbm = plan_of(way, GPT3.model, (GPT3.batch, length)).hbm_bytes
            each = {f"{sublayer}_gb": in_hbm[sublayer] / GB for sublayer in _SUBLAYERS}
            rows.append({"way": way.words, "length": length, **each, "hbm_gb": sum(each.values())})
    frame = pd.DataFrame(rows)
    board = loaded_otherwise(original())
    others = [
        plan_of(H2M2, GPT3.model, (GPT3.batch, length), board).hbm_bytes["qkv"] / GB for length in _CLOSE
    ]
    ours, best = (frame[frame["way"] == way.words].set_index("length") for way in (H2M2, ORACLE))
    used, qkv = 100 * ours["hbm_gb"] / capacity_gb(), ours["qkv_gb"]
    values = {
        "source": how(f"batch {GPT3.batch}, lengths assumed: {_CLOSE[0]} to {_CLOSE[-1]}"),
        "other": under_the_other_load({"qkv at most": max(others), "at least": min(others)}, "GB"),
        "used": (used.min(), used.max()),
        "course": {sublayer: _course(ours[f"{sublayer}_gb"]) for sublayer in _SUBLAYERS},
        "left_at": int(qkv.index[qkv < qkv.max() / 10].min()),
        "best_qkv": (best["qkv_gb"].min(), best["qkv_gb"].max()),
        "capacity": capacity_gb(),
        "top": 1.08 * capacity_gb(),
    }
    place = (frame["length"] // 128 - 1).rename("at")
    return Result(frame, values, {"places": frame.assign(at=place)})


def capacity_gb() -> float:
    """Return the size of the board's HBM."""
    return original().hbm.capacity_bytes / GB


def _course(size_gb: pd.Series[float]) -> str:
    """Describe the size from the shortest requests to the longest, and whether it only grows or shrinks."""
    first, last = size_gb.iloc[0], size_gb.iloc[-1]
    steps = size_gb.diff().dropna()
    straight = (steps >= 0).all() or (steps <= 0).all()
    return f"from {first:.1f} to {last:.1f} GB" + (", in one direction" if straight else "")
