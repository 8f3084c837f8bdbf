"""Pictures of predictions against measurements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from laminabench.render.static.drawn import drawn
from laminabench.render.style import BLUE, CYCLE, PAGE, PUBLISHED
from laminabench.traces.formats.wording import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from laminabench.workflows.validate.disaggregation import Predicted
    from laminabench.workflows.validate.recorded import Judged
    from laminabench.workflows.validate.serving import Judged as Served

TITLES = {"ttft": "TTFT in s", "tpot": "TPOT in ms", "latency": "latency in s"}
STEP_TITLES = {"cuda": "kernels in ms", "wall": "step in ms"}
SERVED = {"tpot": "TPOT in ms", "ttft": "TTFT in ms"}
_UNITS = {"ttft": 1.0, "tpot": 1000.0, "latency": 1.0}


def draw_recorded(judged: Sequence[Judged], target: Path) -> None:
    """Draw the share of requests within each time, measured and predicted."""
    first = list({each.recording.name: each for each in reversed(judged)}.values())[::-1]
    drawn(lambda: _recorded(first), target)


def _recorded(judged: Sequence[Judged]) -> Figure:
    figure, panels = _panels(2.2, len(judged), len(TITLES))
    for row, each in zip(panels, judged, strict=True):
        for axes, (name, title) in zip(row, TITLES.items(), strict=True):
            for times, label, looks in (
                (each.measured, "measured", {"color": PUBLISHED, "lw": 3.0, "alpha": 0.6}),
                (each.predicted, "predicted", {"color": BLUE, "lw": 1.2}),
            ):
                values = np.sort(getattr(times, name)) * _UNITS[name]
                share = np.arange(1, len(values) + 1) / len(values)
                axes.plot(values, share, label=label, **looks)
            axes.set(xlabel=title, ylim=(0, 1), xlim=(0, None))
        row[0].set_ylabel("share of requests")
        row[1].set_title(printable(each.recording.name), fontsize=9, parse_math=False)
    panels[0][0].legend(loc="lower right", fontsize=7)
    return figure


def draw_serving(served: Sequence[Served], target: Path) -> None:
    """Draw predictions over measurements; known outliers are hollow."""
    drawn(lambda: _serving([each for each in served if each.tpot_ms is not None]), target)


def _serving(served: Sequence[Served]) -> Figure:
    devices = list(dict.fromkeys(each.point.device for each in served))
    colours = dict(zip(dict.fromkeys(each.point.model for each in served), CYCLE, strict=False))
    figure, panels = _panels(2.6, len(devices), len(SERVED))
    for row, device in zip(panels, devices, strict=True):
        for axes, (metric, title) in zip(row, SERVED.items(), strict=True):
            axes.axhline(1, color=PUBLISHED, lw=0.8)
            here = [one for one in served if one.point.device == device]
            for (model, colour), off in product(colours.items(), (True, False)):
                those = [one for one in here if (one.point.model, bool(one.point.off)) == (model, off)]
                measured = np.array([getattr(one.point, f"{metric}_ms") for one in those])
                ratio = np.array([getattr(one, f"{metric}_ms") for one in those]) / measured
                face = "none" if off else colour
                axes.plot(measured, ratio, "o", color=colour, mfc=face, ms=3, mew=0.6)
            axes.set(xscale="log", yscale="log", ylim=(0.25, 4), xlabel=f"measured {title}")
            axes.set_yticks(
                (0.25, 0.5, 0.7, 1, 1.4, 2, 4), ("0.25", "0.5", "0.7", "1", "1.4", "2", "4"), minor=False
            )
            axes.minorticks_off()
        row[0].set_ylabel("predicted / measured")
        row[0].set_title(printable(device.upper()), fontsize=9, parse_math=False)
    for model, colour in colours.items():
        panels[0][0].plot([], [], "o", color=colour, ms=3, label=printable(model))
    panels[0][0].legend(fontsize=6, ncols=2)
    return figure


def draw_steps(steps: Sequence[Predicted], target: Path) -> None:
    """Draw predicted over measured decode steps: the kernels' time, and as the host sees it."""
    drawn(lambda: _steps(steps), target)


def _steps(steps: Sequence[Predicted]) -> Figure:
    figure, (panels,) = _panels(2.8, 1, len(STEP_TITLES))
    for axes, (quantity, title) in zip(panels, STEP_TITLES.items(), strict=True):
        axes.axhline(1, color=PUBLISHED, lw=0.8)
        for name, colour in zip(dict.fromkeys(each.row.system for each in steps), CYCLE, strict=False):
            those = [one for one in steps if one.row.system == name and one.row.ms[quantity] is not None]
            measured = np.array([one.row.ms[quantity] for one in those], np.float64)
            ratio = np.array([one.ms[quantity] for one in those]) / measured
            axes.plot(measured, ratio, "o", color=colour, ms=3, label=printable(name))
        axes.set(xscale="log", ylim=(0.5, 1.75), xlabel=f"measured {title}")
    panels[0].set_ylabel("predicted / measured")
    panels[0].legend(fontsize=7)
    return figure


def _panels(height: float, rows: int, columns: int) -> tuple[Figure, Any]:
    """Return a figure and its panels; `height` is that of a row in inches."""
    import seaborn
    from matplotlib.figure import Figure

    with seaborn.axes_style("whitegrid"):
        figure = Figure(figsize=(PAGE * 1.4, height * rows), facecolor="white", layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False)
