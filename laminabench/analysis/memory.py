"""Use of boards with two memories: in numbers of the steady window, and over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.distribution import dot, total
from laminabench.analysis.over_time import MOST_SLICES, slice_of
from laminabench.runs.summary import Amounts, HbmBytes, MeanAndMax, Memory, Window
from laminabench.sim.outcome import Columns, Outcome
from laminabench.sim.spec import TICKS_PER_S, Float64, Ticks, ticks

# Uses of HBM and the columns of their sizes.
PARTS = {"kv": "hbm_kv_bytes", "qkv": "hbm_qkv_bytes", "fc": "hbm_fc_bytes"}
NAMES = {"kv": "KV", "qkv": "QKV weights", "fc": "FC weights"}
FREE = "hbm_free_bytes"
_BITS, _MASK = 16, (1 << 16) - 1
HEADS = ("qkv_heads", "attention_groups", "fc_heads")


def memory_of(outcome: Outcome, window: Window) -> Memory:
    """Return the summary's `memory`: of the iterations that ended in the window, bytes of one board.

    Means weight each iteration by its duration; counts and totals are of all boards together.
    """
    memory, rows = outcome.memory, outcome.iterations
    assert memory is not None
    lasts = ticks(rows["duration_s"])
    end = ticks(rows["start_s"]) + lasts
    inside = (end > window.start) & (end <= window.end)
    changes = int(np.count_nonzero(_changed(memory, rows["batch"])[inside]))
    memory, lasts = {name: values[inside] for name, values in memory.items()}, lasts[inside]
    used = _together(memory, *PARTS.values())
    capacity = int((used + memory[FREE]).max()) if len(used) else None
    moving, hidden = (total(ticks(memory[name])) for name in ("moving_s", "hidden_s"))
    time, count = total(lasts), len(lasts)
    filled = _spread(used, lasts)
    return Memory(
        hbm_capacity_bytes=capacity,
        hbm_share=MeanAndMax(mean=_share(filled.mean, capacity), max=_share(filled.max, capacity)),
        hbm_bytes=HbmBytes(**{part: _spread(memory[column], lasts) for part, column in PARTS.items()}),
        lpddr_bytes=_spread(memory["lpddr_bytes"], lasts),
        wasted_bytes=_spread(memory["wasted_bytes"], lasts),
        mapping_changes=changes,
        changes_per_iteration=_share(changes, count),
        moved_bytes=_amounts(memory["moved_bytes"]),
        compacted_bytes=_amounts(memory["compacted_bytes"]),
        moving_s=moving / TICKS_PER_S,
        moving_share=_share(moving, time),
        hideable_share=_share(hidden, moving),
        hbm_busy_share=_share(total(ticks(memory["hbm_busy_s"])), time),
        lpddr_busy_share=_share(total(ticks(memory["lpddr_busy_s"])), time),
    )


def _together(memory: Columns, *columns: str) -> NDArray[np.int64]:
    total_bytes: NDArray[np.int64] = np.sum([memory[column] for column in columns], axis=0, dtype=np.int64)
    return total_bytes


def _changed(memory: Columns, board: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which iterations had another mapping than the previous one on their board."""
    changed = np.zeros(len(board), np.bool_)
    mapping = np.column_stack([memory[name] for name in HEADS])
    for each in np.unique(board).tolist():
        rows = np.flatnonzero(board == each)
        changed[rows[1:]] = (mapping[rows[1:]] != mapping[rows[:-1]]).any(axis=1)
    return changed


def _spread(values: NDArray[Any], lasts: Ticks) -> MeanAndMax:
    """Return the mean weighted by the iterations' time, and the maximum."""
    time = total(lasts)
    if not time:
        return MeanAndMax(mean=None, max=None)
    # Bytes times ticks exceeds 64 bits: multiply some bits of the bytes at a time.
    weighed = sum(dot(lasts, (values >> bits) & _MASK) << bits for bits in range(0, 64, _BITS))
    return MeanAndMax(mean=weighed / time, max=int(values.max()))


def _amounts(moved: NDArray[Any]) -> Amounts:
    """Return the total, and the mean and the maximum of an iteration."""
    in_all, most = total(moved), int(moved.max()) if len(moved) else None
    return Amounts(total=in_all, per_iteration=_share(in_all, len(moved)), max=most)


def _share(part: float | None, full: float | None) -> float | None:
    return part / full if part is not None and full else None


@dataclass(frozen=True, slots=True)
class MemoryOverTime:
    """Use of memory by slice of time, all boards together."""

    edges_s: Float64
    capacity_bytes: int  # of HBM
    stored_bytes: dict[str, Float64]  # means of kv, qkv, fc and free; of HBM
    moved_bytes_per_s: Float64


def memory_over_time(outcome: Outcome, slices: int = MOST_SLICES) -> MemoryOverTime:
    """Return the use of memory in equal slices from the beginning to the end of the replay.

    A board stores what an iteration began with until its next one begins, and nothing after its last one.
    """
    memory, rows = outcome.memory, outcome.iterations
    assert memory is not None
    edges_s = np.linspace(0.0, outcome.end_s, slices + 1)
    width_s = outcome.end_s / slices
    stored = {part: np.zeros(slices) for part in (*PARTS, "free")}
    capacity = 0
    if not width_s:
        return MemoryOverTime(edges_s, capacity, stored, np.zeros(slices))
    for board in np.unique(rows["batch"]).tolist():
        ours = np.flatnonzero(rows["batch"] == board)
        capacity += int(_together(memory, *PARTS.values(), FREE)[ours].max())
        start_s = rows["start_s"][ours]
        at_s = np.append(start_s, start_s[-1] + rows["duration_s"][ours[-1]])
        for part, column in (*PARTS.items(), ("free", FREE)):
            so_far = np.append(0.0, np.cumsum(memory[column][ours] * np.diff(at_s)))
            stored[part] += np.diff(np.interp(edges_s, at_s, so_far)) / width_s
    place = slice_of(ticks(rows["start_s"]), ticks(edges_s))
    moved = np.bincount(place, weights=memory["moved_bytes"], minlength=slices) / width_s
    return MemoryOverTime(edges_s, capacity, stored, moved)
