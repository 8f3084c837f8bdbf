"""A plan as a picture: cost against time between tokens, the front, the limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from laminabench.figures.drawn import drawn
from laminabench.figures.style import INK, PAGE, SYSTEM_COLOURS, foot, look, sheet
from laminabench.traces.formats.wording import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Not by colour alone.
MARKS = {"lamina": "o", "lamina-v1": "s", "vllm": "^", "h2m2": "D"}


def draw(result: dict[str, Any], target: Path) -> None:
    """Draw the --json of a plan into `target`, as its suffix names: one panel a cost set."""
    with look():
        drawn(lambda: picture(result), target)


def picture(result: dict[str, Any]) -> Figure:
    """The figure, not yet written anywhere; inside `look`."""
    answers = result["answers"]
    figure, panels = sheet(1, len(answers), width=PAGE, height=3.4, squeeze=False, sharey=True)
    rows = [row for answer in answers for row in answer["replayed"]]
    # Tokens for nothing have no place on a logarithmic axis.
    scale = "log" if all(row["usd_per_million_tokens"] for row in rows) else "linear"
    for axes, answer in zip(panels[0], answers, strict=True):
        axes.set_yscale(scale)
        _panel(axes, answer, result["slo_tbt_p99_ms"])
    panels[0][0].set_ylabel("\\$ a million tokens")
    # What one panel lacks another may have.
    named = {
        label: handle
        for axes in panels[0]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(named.values()), list(named), loc="outside upper center", ncols=6)
    trace = printable(result["trace"]["name"]).replace("$", r"\$")
    model = printable(result["model"]).replace("$", r"\$")
    foot(figure, f"modelled; {trace}, {model}, {result['mode']}; candidates that were replayed in full")
    return figure


def _panel(axes: Axes, answer: dict[str, Any], slo_ms: float) -> None:
    rows = [row for row in answer["replayed"] if row["keeps_up"]]
    for system, colour in SYSTEM_COLOURS.items():
        own = [row for row in rows if row["system"] == system]
        if own:
            x, y = _places(own)
            axes.scatter(x, y, s=14, color=colour, marker=MARKS[system], alpha=0.75, lw=0, label=system)
    if answer["front"]:
        axes.plot(*_places(answer["front"]), color=INK, lw=0.8, drawstyle="steps-post", label="front")
    if answer["winner"]:
        x, y = _places([answer["winner"]])
        axes.scatter(x, y, s=90, facecolor="none", edgecolor=INK, lw=1.2, label="winner")
    axes.axvline(slo_ms, color=INK, lw=0.8, ls=":", label=f"limit, {slo_ms:g} ms")
    axes.set(xlabel="TBT p99 in ms", xlim=(0, None))
    axes.set_title(printable(answer["costs"]).replace("$", r"\$"))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")


def _places(rows: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """TBT and cost of each."""
    return [row["tbt_p99_ms"] for row in rows], [row["usd_per_million_tokens"] for row in rows]
