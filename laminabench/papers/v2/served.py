"""v2's Lamina and vLLM on real traces, on more and fewer devices (figure 11)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.network import parse_network
from laminabench.papers.context import Context
from laminabench.papers.paper import Result
from laminabench.papers.replays import ends, fitting_all, throughput
from laminabench.systems.modelled.setup import Setup
from laminabench.traces.table import Trace
from laminabench.workflows.replay import Workload, replay

MODELS = ("llama-65b", "llama3-70b")
# Neither the traces nor all DOPs are in the paper's text.
CASES = ("azure-conv", "kimi-conv")
# Small batches of long texts take many steps: the beginning of this trace is enough.
_FIRST = {"kimi-conv": 4000}
LAMINA_DOPS = ((2, 2), (2, 4), (2, 8), (4, 4), (4, 8))
VLLM_DEGREES = (4, 8)


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


def fig11(context: Context) -> Result:
    """Replay every configuration with both cost sets, on the requests that all of them hold."""
    traces = {name: context.trace(name).first(_FIRST.get(name, len(context.trace(name)))) for name in CASES}
    points = [
        point
        for costs in context.costs()
        for name in MODELS
        for trace in traces.values()
        for point in _points(name, trace, costs)
    ]
    frame = pd.DataFrame(points, columns=Point._fields)
    here = frame[(frame["system"] == "lamina") & (frame["trace"] == CASES[0])]
    tables = here.set_index(["model", "costs", "dop"])[["tokens_per_s", "mean_batch"]].unstack()
    rates, batch = tables["tokens_per_s"], tables["mean_batch"].loc["llama3-70b"]["(2, 4)"]
    gained = 100 * (rates.div(rates["(2, 4)"], axis=0) - 1)
    values = {
        "source": context.source_of(*CASES),
        "draft": context.draft,
        "batch": batch,
        "batch_low": batch.min(),
        "gained": {name: {dop: ends(gained.loc[name][dop]) for dop in gained} for name in MODELS},
        "serial": [_serial_gain(costs, traces[CASES[0]]) for costs in context.costs()],
    }
    return Result(frame, values, {"points": _means(frame)})


def setups(model_name: str, costs: CostSet) -> dict[tuple[str, str], Setup]:
    """Return the configurations of a model, by system and DOP."""
    named = {("vllm", f"TP {degree}"): f"{degree}xh100" for degree in VLLM_DEGREES}
    named |= {("lamina", f"({a}, {b})"): f"{a}xh100+{b}xh20" for a, b in LAMINA_DOPS}
    shape, network = model(model_name), parse_network("fhbn")
    return {key: Setup(shape, parse_deployment(text), costs, network) for key, text in named.items()}


def _points(model_name: str, trace: Trace, costs: CostSet) -> list[Point]:
    chosen = setups(model_name, costs)
    fitting = fitting_all(trace, ((system, setup) for (system, _), setup in chosen.items()))
    points = []
    for (system, dop), setup in chosen.items():
        summary = replay(fitting, system, setup, Workload()).summary
        usd, rate = setup.deployment.usd_per_hour, summary.throughput_tokens_per_s
        assert usd is not None
        assert rate is not None
        case = (costs.name, model_name, trace.meta.name, system, dop, usd)
        points.append(Point(*case, rate, summary.mean_batch, 3600 * rate / usd))
    return points


def _means(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cost sets' means, and which configuration of a model and trace has most tokens a dollar."""
    keys = ["model", "trace", "system", "dop", "usd_per_hour"]
    means = frame.groupby(keys, sort=False)[["tokens_per_s", "tokens_per_usd"]].mean().reset_index()
    best = means.groupby(["model", "trace"])["tokens_per_usd"].idxmax()
    return means.assign(best=means.index.isin(best))


def _serial_gain(costs: CostSet, trace: Trace) -> float:
    """Return what two more model workers add to LLaMA-65B's throughput with one batch, in percent."""
    chosen = [replace(setups("llama-65b", costs)["lamina", dop], batches=1) for dop in ("(2, 4)", "(4, 4)")]
    fitting = fitting_all(trace, (("lamina", setup) for setup in chosen))
    few, more = (throughput(fitting, "lamina", setup) for setup in chosen)
    return 100 * (more / few - 1)
