"""Figure 11: throughput and price of more and fewer devices, of Lamina and vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.network import parse_network
from laminabench.compare.spec import longest_held, without_longer
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import ends
from laminabench.figures.style import (
    INK,
    OVER_GRID,
    PAGE,
    PUBLISHED,
    SYSTEM_COLOURS,
    foot,
    sentence,
    sheet,
)
from laminabench.replay import Workload, replay
from laminabench.systems.modelled.setup import Setup
from laminabench.traces.table import Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Throughput and hardware cost of various configurations"
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


def make(ground: Ground) -> Made:
    """Every configuration with both cost sets, on the requests that all of them hold."""
    import pandas as pd

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
    return Made(
        frame,
        _claims(frame, how, draft=ground.num_requests is not None),
        f"{sentence(how)}. Dots are the sets' mean, lines span them; bold: most tokens a dollar.",
    )


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
        usd = setup.deployment.usd_per_hour
        assert usd is not None
        rate = summary.throughput_tokens_per_s
        assert rate is not None
        case = (costs.name, model_name, trace.meta.name, system, dop, usd)
        points.append(Point(*case, rate, summary.mean_batch, 3600 * rate / usd))
    return points


def _claims(frame: pd.DataFrame, how: str, *, draft: bool) -> tuple[Claim, ...]:
    here = frame[(frame["system"] == "lamina") & (frame["trace"] == CASES[0])]
    rates = here.set_index(["model", "costs", "dop"])["tokens_per_s"].unstack()
    batches = here.set_index(["model", "costs", "dop"])["mean_batch"].unstack()
    gained = {dop: 100 * (rates[dop] / rates["(2, 4)"] - 1) for dop in ("(2, 8)", "(4, 4)")}
    where, on = "section 6.1", f"on {CASES[0]}"
    return (
        Claim(
            f"mean batch of LLaMA3-70B with (2, 4), {on}",
            where,
            _BATCH,
            ends(batches.loc["llama3-70b"]["(2, 4)"]),
            how,
            remark="Too few requests were asked for to fill it." if draft else "",
        ),
        Claim(
            f"four more attention workers, (2, 8) over (2, 4): LLaMA-65B, {on}",
            where,
            '"rapidly increases"',
            _percents(gained["(2, 8)"].loc["llama-65b"]),
            how,
        ),
        Claim(
            f"the same: LLaMA3-70B, {on}",
            where,
            '"will not dramatically improve"',
            _percents(gained["(2, 8)"].loc["llama3-70b"]),
            how,
        ),
        Claim(
            f"two more model workers, (4, 4) over (2, 4): LLaMA-65B, {on}",
            where,
            '"only mildly"',
            _percents(gained["(4, 4)"].loc["llama-65b"]),
            how,
            remark="Not mild here: with two batches in rotation the model workers read the weights twice a "
            "cycle and are what binds; with one batch at a time the gain is less than half of that.",
        ),
    )


def _percents(values: pd.Series[float]) -> str:
    return f"{values.min():+.0f} to {values.max():+.0f} %"


def draw(made: Made) -> Figure:
    """Price against throughput, a panel for each model and trace."""
    figure, axes = sheet(len(CASES), len(MODELS), width=PAGE, height=5.0)
    for row, trace in enumerate(CASES):
        for column, name in enumerate(MODELS):
            mine = made.frame[(made.frame["trace"] == trace) & (made.frame["model"] == name)]
            _panel(axes[row][column], mine)
            axes[row][column].set(title=f"{name}, {trace}", xlabel="$/h")
        axes[row][0].set_ylabel("tokens/s")
    _published(axes[CASES.index("azure-conv")][MODELS.index("llama3-70b")], made)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
    foot(figure, made.how)
    return figure


def _published(axes: Axes, made: Made) -> None:
    ours = made.claims[0].ours
    assert isinstance(ours, tuple)
    words = f"published: a batch of {_BATCH:.0f} with (2, 4)\nhere: {ours[0]:.0f}"
    place: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
    axes.text(0.98, 0.04, words, fontsize=7, color=PUBLISHED, bbox=OVER_GRID, **place)


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
