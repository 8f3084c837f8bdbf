"""A plan as a picture: cost against time between tokens, the front, the limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from laminabench.figures.drawn import drawn
from laminabench.figures.style import INK, PAGE, SYSTEM_COLOURS, foot, look, sheet
from laminabench.traces.formats.wording import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from laminabench.traces.table import Trace
    from laminabench.workflows.plan.answer import Answer
    from laminabench.workflows.plan.measure import Point
    from laminabench.workflows.plan.request import ResolvedPlan

# Not by colour alone.
MARKS = {"lamina": "o", "lamina-v1": "s", "vllm": "^", "h2m2": "D", "afd": "v"}


def draw(request: ResolvedPlan, trace: Trace, answers: Sequence[Answer], target: Path) -> None:
    """Draw a plan into `target`, as its suffix names: one panel a cost set."""
    with look():
        drawn(lambda: picture(request, trace.meta.name, answers), target)


def picture(request: ResolvedPlan, trace_name: str, answers: Sequence[Answer]) -> Figure:
    """The figure, not yet written anywhere; inside `look`."""
    figure, panels = sheet(1, len(answers), width=PAGE, height=3.4, squeeze=False, sharey=True)
    points = [point for answer in answers for point in answer.found.points]
    # Tokens for nothing have no place on a logarithmic axis.
    scale = "log" if all(point.usd_per_million_tokens for point in points) else "linear"
    for axes, answer in zip(panels[0], answers, strict=True):
        axes.set_yscale(scale)
        _panel(axes, answer, request.request.slo_tbt_p99_ms)
    panels[0][0].set_ylabel("\\$ a million tokens")
    # What one panel lacks another may have.
    named = {
        label: handle
        for axes in panels[0]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(named.values()), list(named), loc="outside upper center", ncols=6)
    names = f"{_literal(trace_name)}, {_literal(request.model.name)}, {request.request.mode}"
    foot(figure, f"modelled; {names}; candidates that were replayed in full")
    return figure


def _literal(text: str) -> str:
    """Text whose dollars are no formulas."""
    return printable(text).replace("$", r"\$")


def _panel(axes: Axes, answer: Answer, slo_ms: float) -> None:
    points = [point for point in answer.found.points if point.keeps_up]
    for system, colour in SYSTEM_COLOURS.items():
        own = [point for point in points if point.candidate.system == system]
        if own:
            x, y = _places(own)
            axes.scatter(x, y, s=14, color=colour, marker=MARKS[system], alpha=0.75, lw=0, label=system)
    if answer.front:
        axes.plot(*_places(answer.front), color=INK, lw=0.8, drawstyle="steps-post", label="front")
    if answer.winner:
        x, y = _places([answer.winner])
        axes.scatter(x, y, s=90, facecolor="none", edgecolor=INK, lw=1.2, label="winner")
    axes.axvline(slo_ms, color=INK, lw=0.8, ls=":", label=f"limit, {slo_ms:g} ms")
    axes.set(xlabel="TBT p99 in ms", xlim=(0, None))
    axes.set_title(_literal(answer.question.costs.name))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")


def _places(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """TBT and cost of each."""
    return [point.tbt_p99_ms for point in points], [point.usd_per_million_tokens for point in points]
