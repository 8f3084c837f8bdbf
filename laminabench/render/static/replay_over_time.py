"""A replay over time: tokens a second, time between tokens and to the first, faults, memories of boards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from laminabench.analysis.memory import NAMES, memory_over_time
from laminabench.analysis.over_time import first_tokens_over_time, over_time
from laminabench.render.static.style import BLUE, GREEN, ORANGE, PURPLE
from laminabench.runs.summary import FaultCost
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import Float64
from laminabench.traces.formats.wording import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by people who see no red or green (after Okabe and Ito).
_RATE, _P50, _P99, _FAULT, _RESUMED = "#009e73", "#0072b2", "#d55e00", "#777777", "#cc79a7"


def picture(
    outcome: Outcome,
    *,
    title: str,
    slo_tbt_ms: float,
    slo_ttft_ms: float | None = None,
    faults: Sequence[FaultCost] = (),
    resumed_s: Sequence[float] = (),
) -> Figure:
    """The figure, not yet written anywhere; faults as `analysis.faults` has them."""
    import seaborn
    from matplotlib.figure import Figure

    found = over_time(outcome)
    with seaborn.axes_style("whitegrid"):
        boards, prompts = outcome.memory is not None, outcome.prompts is not None
        shares = [2, 2, 2, 1] if boards else [1, 1, 1] if prompts else [1, 1]
        heights = {2: 6.0, 3: 8.0, 4: 9.5}
        figure = Figure(figsize=(10.5, heights[len(shares)]), facecolor="white", layout="constrained")
        rates, gaps, *below = figure.subplots(len(shares), 1, sharex=True, height_ratios=shares)
    # A name is the user's: nothing in it is mathematics.
    figure.suptitle(printable(title), parse_math=False)
    rates.stairs(found.tokens_per_s, found.edges_s, fill=True, color=_RATE, alpha=0.6)
    rates.set(ylabel="tokens/s", ylim=(0, None), xlim=(0, max(outcome.end_s, 1e-9)))
    _times(gaps, found.edges_s, {"TBT p50": found.tbt_p50_ms, "TBT p99": found.tbt_p99_ms}, slo_tbt_ms)
    gaps.set(ylabel="time between tokens in ms")
    for axes in (rates, gaps):
        _marks(axes, faults, resumed_s)
    handles, labels = gaps.get_legend_handles_labels()
    if boards:
        panels(below, outcome)
        more = below[0].get_legend_handles_labels()
        handles, labels = handles + more[0], labels + more[1]
    if prompts:
        waits = dict(
            zip(("TTFT p50", "TTFT p99"), first_tokens_over_time(outcome, found.edges_s), strict=True)
        )
        _times(below[0], found.edges_s, waits, slo_ttft_ms)
        below[0].set(ylabel="time to first token in ms")
        more = below[0].get_legend_handles_labels()
        handles, labels = handles + more[0], labels + more[1]
    (below or [gaps])[-1].set_xlabel("seconds")
    # Beside the axes: within them it would hide what is worst.
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    return figure


def _times(axes: Axes, edges_s: Float64, lines: dict[str, Float64], limit_ms: float | None) -> None:
    """Lines of a slice's percentiles, the better one first, and the limit if there is one."""
    middle = (edges_s[:-1] + edges_s[1:]) / 2
    for (name, values), colour in zip(lines.items(), (_P50, _P99), strict=True):
        axes.plot(middle, values, color=colour, lw=1.4, marker=".", markersize=3, label=name)
    limits = [] if limit_ms is None else [limit_ms]
    for limit in limits:
        axes.axhline(limit, color="black", lw=0.8, ls=":", label=f"limit, {limit:g} ms")
    known = np.concatenate([*lines.values(), limits])
    known = known[np.isfinite(known) & (known > 0)]
    # A dip is a hundred times what is normal: both can be seen on a logarithmic axis only.
    if len(known) and known.max() > 20 * known.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(0, None)


def _marks(axes: Axes, faults: Sequence[FaultCost], resumed_s: Sequence[float]) -> None:
    """From when each fault began to when the engine went on, and where the replay was interrupted."""
    for number, fault in enumerate(faults):
        began_s = fault.began_s
        until_s = fault.noticed_s + fault.recovery_s
        label = None if number else "fault, until iterations go on"
        axes.axvspan(began_s, until_s, alpha=0.35, lw=0, color=_FAULT, label=label)
        axes.axvline(began_s, color=_FAULT, lw=0.8)
    for number, at_s in enumerate(resumed_s):
        axes.axvline(at_s, color=_RESUMED, lw=1.2, ls="--", label="resumed" if not number else None)


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
