"""Charts of boards with two memories: what they held over time, and what moved between these."""

from __future__ import annotations

from collections.abc import Sequence

from laminabench.analysis.memory import NAMES, MemoryOverTime, memory_over_time
from laminabench.render.charts.chart import Chart, axis, dotted_line, line, rounded
from laminabench.render.format import number4
from laminabench.render.model import listed
from laminabench.render.shown import Shown

SLICES = 240
# Other colours than those of systems, three to one against white and against dark, as in breakdown.py.
COLOURS = {"kv": "#6470c4", "qkv": "#b0821c", "fc": "#1a9a8a"}
_SECONDS = axis("seconds since the replay began", rangemode="tozero")


def memory_charts(runs: Sequence[Shown]) -> list[Chart]:
    """What HBM held, one chart for each Run, and for all of them what moved."""
    found = [(each, memory_over_time(each.run.outcome, SLICES)) for each in _known(runs)]
    return [*(_held(*pair) for pair in found), _moved(found)] if found else []


def _known(runs: Sequence[Shown]) -> list[Shown]:
    return [each for each in runs if each.run.outcome.memory is not None]


def _held(each: Shown, found: MemoryOverTime) -> Chart:
    middle_s = rounded((found.edges_s[:-1] + found.edges_s[1:]) / 2)
    traces = [
        {
            "type": "scatter",
            "mode": "none",
            "stackgroup": "held",
            "name": NAMES[part],
            "x": middle_s,
            "y": rounded(found.stored_bytes[part] / 1e9),
            "fillcolor": colour,
            "hovertemplate": f"{NAMES[part]} %{{y:,.4~g}} GB",
            "meta": {"run": each.number},
        }
        for part, colour in COLOURS.items()
    ]
    whole = found.capacity_bytes / 1e9
    means = [
        f"{name} {number4(float(found.stored_bytes[part].mean()) / 1e9)} GB" for part, name in NAMES.items()
    ]
    capacity = dotted_line(whole, f"{number4(whole)} GB of HBM", vertical=False)
    capacity["annotations"][0] |= {"x": 1, "xref": "paper", "xanchor": "right"}
    return Chart(
        f"hbm-{each.number}",
        f"HBM over time, {each.name}",
        f"What HBM held over time, {each.name}: on average over the whole run {listed(means)}.",
        f"Bytes allocated in HBM by sublayer, all boards together, as means of {SLICES} equal slices of the "
        "replay. A board holds what an iteration began with until its next one begins.",
        traces,
        {"xaxis": _SECONDS, "yaxis": axis("GB", range=[0, 1.1 * whole or 1]), **capacity},
    )


def _moved(found: Sequence[tuple[Shown, MemoryOverTime]]) -> Chart:
    traces, words = [], []
    for each, over_time in found:
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
