"""v2's Lamina and vLLM on real traces, on more and fewer devices (figure 11)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.network import parse_network
from laminabench.figures.claims import SERVED, Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import ends, panels, span
from laminabench.render.style import (
    INK,
    OVER_GRID,
    PAGE,
    PUBLISHED,
    SYSTEM_COLOURS,
    Looks,
    sentence,
    sheet,
)
from laminabench.systems.modelled.setup import Setup
from laminabench.traces.table import Trace
from laminabench.workflows.compare.spec import longest_held, without_longer
from laminabench.workflows.replay import Workload, replay

MODELS = ("llama-65b", "llama3-70b")
# Neither the traces nor all DOPs are in the paper's text.
CASES = ("azure-conv", "kimi-conv")
# Small batches of long texts take many steps: the beginning of this trace is enough.
_FIRST = {"kimi-conv": 4000}
LAMINA_DOPS = ((2, 2), (2, 4), (2, 8), (4, 4), (4, 8))
VLLM_DEGREES = (4, 8)
_BATCH = 800.0


class Point(NamedTuple):
    """One configuration on one trace."""

    costs: str
    model: str
    trace: str
    system: str
    dop: str
    usd_per_hour: float
    tokens_per_s: float
    mean_batch: float
    tokens_per_usd: float


def fig11(ground: Ground) -> Made:
    """Every configuration with both cost sets, on the requests that all of them hold."""
    points = [
        point
        for costs in ground.costs()
        for name in MODELS
        for trace in CASES
        for point in _points(name, _trace(ground, trace), costs)
    ]
    frame = pd.DataFrame(points, columns=Point._fields)
    how = (
        f"modelled: {ground.sets}; {ground.source_of(*CASES)} (the first "
        f"{_FIRST['kimi-conv']:,} requests of kimi-conv), without requests that one configuration does not "
        "hold; the traces and DOPs are assumed"
    )
    serial = span((_serial_gain(costs, _trace(ground, CASES[0])) for costs in ground.costs()), "+.0f")
    claims = _claims(frame, how, serial, draft=ground.num_requests is not None)
    words = f"{sentence(how)}. Dots are the sets' mean, lines span them; bold: most tokens a dollar."
    return Made(frame, claims, words, partial(_draw_fig11, claims[0]))


def setups(model_name: str, costs: CostSet) -> dict[tuple[str, str], Setup]:
    """The configurations of a model, by system and DOP."""
    named = {("vllm", f"TP {degree}"): f"{degree}xh100" for degree in VLLM_DEGREES}
    named |= {("lamina", f"({a}, {b})"): f"{a}xh100+{b}xh20" for a, b in LAMINA_DOPS}
    shape, network = model(model_name), parse_network("fhbn")
    return {key: Setup(shape, parse_deployment(text), costs, network) for key, text in named.items()}


def _trace(ground: Ground, name: str) -> Trace:
    whole = ground.trace(name)
    return whole.first(_FIRST.get(name, len(whole)))


def _points(model_name: str, trace: Trace, costs: CostSet) -> list[Point]:
    chosen = setups(model_name, costs)
    kept = without_longer(trace, min(longest_held(system, setup) for (system, _), setup in chosen.items()))
    points = []
    for (system, dop), setup in chosen.items():
        summary = replay(kept, system, setup, Workload()).summary
        usd, rate = setup.deployment.usd_per_hour, summary.throughput_tokens_per_s
        assert usd is not None
        assert rate is not None
        case = (costs.name, model_name, trace.meta.name, system, dop, usd)
        points.append(Point(*case, rate, summary.mean_batch, 3600 * rate / usd))
    return points


def _serial_gain(costs: CostSet, trace: Trace) -> float:
    """What two more model workers add to LLaMA-65B's throughput with one batch at a time, in percent."""
    chosen = [replace(setups("llama-65b", costs)["lamina", dop], batches=1) for dop in ("(2, 4)", "(4, 4)")]
    kept = without_longer(trace, min(longest_held("lamina", setup) for setup in chosen))
    few, more = (
        replay(kept, "lamina", setup, Workload()).summary.throughput_tokens_per_s or 0.0 for setup in chosen
    )
    return 100 * (more / few - 1)


def _claims(frame: pd.DataFrame, how: str, serial: str, *, draft: bool) -> list[Claim]:
    here = frame[(frame["system"] == "lamina") & (frame["trace"] == CASES[0])]
    tables = here.set_index(["model", "costs", "dop"])[["tokens_per_s", "mean_batch"]].unstack()
    rates, batches = tables["tokens_per_s"], tables["mean_batch"]

    def gained(dop: str, model_name: str) -> str:
        low, high = ends((100 * (rates[dop] / rates["(2, 4)"] - 1)).loc[model_name])
        return f"{low:+.0f} to {high:+.0f} %"

    says, on = Section("section 6.1", how, "performance", SERVED), f"on {CASES[0]}"
    return [
        says(
            f"mean batch of LLaMA3-70B with (2, 4), {on}",
            _BATCH,
            batches.loc["llama3-70b"]["(2, 4)"],
            remark="Too few requests were asked for to fill it." if draft else "",
        ),
        says(
            f"four more attention workers, (2, 8) over (2, 4): LLaMA-65B, {on}",
            '"rapidly increases"',
            gained("(2, 8)", "llama-65b"),
        ),
        says(
            f"the same: LLaMA3-70B, {on}", '"will not dramatically improve"', gained("(2, 8)", "llama3-70b")
        ),
        says(
            f"two more model workers, (4, 4) over (2, 4): LLaMA-65B, {on}",
            '"only mildly"',
            gained("(4, 4)", "llama-65b"),
            remark="Not mild here: with two batches in rotation the model workers read the weights twice a "
            "cycle and are what binds.",
            experiment=f"with one batch at a time {serial} %.",
        ),
    ]


def _draw_fig11(batch: Claim, frame: pd.DataFrame) -> Figure:
    """Price against throughput, a panel for each model and trace."""
    figure, axes = sheet(len(CASES), len(MODELS), width=PAGE, height=5.0)
    for panel, (trace, name), mine in panels(axes, frame, trace=CASES, model=MODELS):
        _panel(panel, mine)
        panel.set(title=f"{name}, {trace}", xlabel="$/h")
    for row in axes:
        row[0].set_ylabel("tokens/s")
    assert isinstance(batch.ours, tuple)
    words = f"published: a batch of {_BATCH:.0f} with (2, 4)\nhere: {batch.ours[0]:.0f}"
    about = axes[CASES.index("azure-conv")][MODELS.index("llama3-70b")]
    place: Looks = {"transform": about.transAxes, "ha": "right", "va": "bottom"}
    about.text(0.98, 0.04, words, fontsize=7, color=PUBLISHED, bbox=OVER_GRID, **place)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return figure


def _panel(axes: Axes, frame: pd.DataFrame) -> None:
    groups = frame.groupby(["system", "dop", "usd_per_hour"], sort=False)
    best = groups["tokens_per_usd"].mean().idxmax()
    for system, colour in SYSTEM_COLOURS.items():
        mine = frame[frame["system"] == system].groupby(["usd_per_hour", "dop"])["tokens_per_s"]
        if not len(mine):
            continue
        table = mine.agg(["mean", "min", "max"]).reset_index()
        axes.plot(table["usd_per_hour"], table["mean"], "o", color=colour, label=system)
        axes.vlines(table["usd_per_hour"], table["min"], table["max"], color=colour, lw=1)
        for usd, dop, mean in table[["usd_per_hour", "dop", "mean"]].itertuples(index=False):
            axes.annotate(
                dop,
                (usd, mean),
                xytext=(4, 3) if system == "lamina" else (4, -9),
                textcoords="offset points",
                fontsize=7,
                color=INK,
                weight="bold" if (system, dop, usd) == best else "normal",
            )
    axes.margins(x=0.15)
    axes.set_ylim(0, None)
