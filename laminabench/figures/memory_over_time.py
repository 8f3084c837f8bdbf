"""Panels of what boards' HBM holds over time, by sublayer, and of what moves between their memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from laminabench.analysis.memory import NAMES, memory_over_time
from laminabench.figures.style import BLUE, GREEN, ORANGE, PURPLE
from laminabench.sim.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What is free is hardly there.
COLOURS = {"kv": BLUE, "qkv": ORANGE, "fc": GREEN, "free": "#e4e7ea"}


def panels(axes: Sequence[Axes], outcome: Outcome) -> None:
    """Draw both; each slice of time by its mean, so that there is room for any number of iterations."""
    held, moved = axes
    found = memory_over_time(outcome)
    bottom = np.zeros(len(found.edges_s) - 1)
    for part, colour in COLOURS.items():
        top = bottom + found.held_bytes[part] / 1e9
        name = f"HBM: {NAMES.get(part, part)}"
        held.stairs(top, found.edges_s, baseline=bottom, fill=True, lw=0, color=colour, label=name)
        bottom = top
    held.set(ylabel="HBM in GB", ylim=(0, max(found.capacity_bytes / 1e9, 1e-9)))
    moved.stairs(found.moved_bytes_per_s / 1e9, found.edges_s, fill=True, color=PURPLE)
    moved.set(ylabel="moved, GB/s", ylim=(0, None))
