"""Charts of boards with two memories: contents over time, and traffic between the two."""

from __future__ import annotations

from collections.abc import Sequence

from laminabench.analysis.memory import NAMES, MemoryOverTime, memory_over_time
from laminabench.render.charts.chart import Chart, axis, dotted_line, line, rounded
from laminabench.render.format import number4
from laminabench.render.model import listed
from laminabench.render.shown import Shown

SLICES = 240
# Distinct from systems' colours; contrast 3:1 against white and against dark, as in breakdown.py.
COLOURS = {"kv": "#6470c4", "qkv": "#b0821c", "fc": "#1a9a8a"}
_SECONDS = axis("seconds since the replay began", rangemode="tozero")


def memory_charts(runs: Sequence[Shown]) -> list[Chart]:
    """Return a chart of HBM's contents for each Run, and one of all Runs' traffic."""
    series = [(each, memory_over_time(each.run.outcome, SLICES)) for each in _known(runs)]
    return [*(_contents(*pair) for pair in series), _moved(series)] if series else []


def _known(runs: Sequence[Shown]) -> list[Shown]:
    return [each for each in runs if each.run.outcome.memory is not None]


def _contents(each: Shown, memory: MemoryOverTime) -> Chart:
    middle_s = rounded((memory.edges_s[:-1] + memory.edges_s[1:]) / 2)
    traces = [
        {
            "type": "scatter",
            "mode": "none",
            "stackgroup": "held",
            "name": NAMES[part],
            "x": middle_s,
            "y": rounded(memory.stored_bytes[part] / 1e9),
            "fillcolor": colour,
            "hovertemplate": f"{NAMES[part]} %{{y:,.4~g}} GB",
            "meta": {"run": each.number},
        }
        for part, colour in COLOURS.items()
    ]
    capacity_gb = memory.capacity_bytes / 1e9
    means = [
        f"{name} {number4(float(memory.stored_bytes[part].mean()) / 1e9)} GB" for part, name in NAMES.items()
    ]
    capacity = dotted_line(capacity_gb, f"{number4(capacity_gb)} GB of HBM", vertical=False)
    capacity["annotations"][0] |= {"x": 1, "xref": "paper", "xanchor": "right"}
    return Chart(
        f"hbm-{each.number}",
        f"HBM over time, {each.name}",
        f"Contents of HBM over time, {each.name}: on average over the whole run {listed(means)}.",
        f"Bytes allocated in HBM by sublayer, all boards together, as means of {SLICES} equal slices of the "
        "replay. A board holds what an iteration began with until its next one begins.",
        traces,
        {"xaxis": _SECONDS, "yaxis": axis("GB", range=[0, 1.1 * capacity_gb or 1]), **capacity},
    )


def _moved(series: Sequence[tuple[Shown, MemoryOverTime]]) -> Chart:
    traces, words = [], []
    for each, over_time in series:
        middle_s = (over_time.edges_s[:-1] + over_time.edges_s[1:]) / 2
        rates = over_time.moved_bytes_per_s / 1e9
        words.append(f"{each.name} {number4(float(rates.mean()))} GB/s on average over the whole run")
        traces.append(line(each, middle_s, rates, "%{y:,.4~g} GB/s at %{x:,.1f} s", shape="hvh"))
    return Chart(
        "moved",
        "Moved between the memories over time",
        f"Bytes a second moved between HBM and LPDDR: {listed(words)}.",
        f"What changes of mapping moved in each of {SLICES} equal slices of the replay, in both directions, "
        "all boards together.",
        traces,
        {"xaxis": _SECONDS, "yaxis": axis("GB/s", rangemode="tozero")},
    )
