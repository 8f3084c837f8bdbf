"""The cheapest deployment of each system: by model and devices (today-cost), by H20's price (today-price)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from laminabench.analysis.binding import binding_of
from laminabench.catalog.accuracy import accuracy_of_set
from laminabench.catalog.cost_file import DEFAULT_COSTS, load_costs
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import Device, device, load_devices, priced
from laminabench.papers.context import Context
from laminabench.papers.paper import Result
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.workflows.plan.measure import Point, winner
from laminabench.workflows.plan.question import Limits, Question
from laminabench.workflows.plan.request import affordable
from laminabench.workflows.plan.search import search
from laminabench.workflows.replay import Workload, replay

SYSTEMS = ("vllm", "lamina", "afd")
MODELS = ("deepseek-v3", "qwen3-235b-a22b", "gpt-oss-120b", "mixtral-8x7b", "llama3-70b")
TRACES = ("azure-conv", "kimi-conv")
SLO_TBT_P99_MS = 100.0
# A node of eight H200, with another of them or with two of H20.
BUDGET_USD_PER_HOUR = 180.0
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "H200": (("h200",), ()),
    "H200 and H20": (("h200", "h20"), ()),
    "H200 and H20, fa3-64": (("h200", "h20"), ("h20=fa3-64",)),  # which vLLM takes without a flag
}
# As many as fill the largest batches several times over.
REQUESTS = 3000
# Of what H20 costs an hour in the catalogue.
SHARES = (1.0, 0.5, 0.25)
# A system that has no deployment within the limit has no bar.
NOTHING = float("nan")


def cost(context: Context) -> Result:
    """Plan every model on both traces, from H200 alone and with H20; of a draft the quickest."""
    rows = [
        {"trace": trace, "devices": kinds, "model": name, **row}
        for trace in TRACES
        for kinds, (names, kernels) in KINDS.items()
        for name in (MODELS if not context.draft else MODELS[-1:])
        for row in _winners(_trace(context, trace), name, [device(each) for each in names], kernels)
    ]
    return Result(pd.DataFrame(rows), _values(context, TRACES))


def price(context: Context) -> Result:
    """Plan mixtures of experts on azure-conv, as H20 gets cheaper; of a draft one."""
    usd = load_devices()["h20"].price_usd_per_hour
    assert usd is not None
    rows = []
    for name in MODELS[: 4 if not context.draft else 1]:
        for share in SHARES:
            known = priced(load_devices(), {"h20": share * usd})
            # Of vllm no device is an H20: it is the same at every price.
            row = _winners(_trace(context, TRACES[0]), name, [known["h200"], known["h20"]])
            rows += [{"model": name, "h20_usd_per_hour": share * usd, **row} for row in row]
    frame = pd.DataFrame(rows)
    return Result(frame, _values(context, TRACES[:1]) | {"models": list(dict.fromkeys(frame["model"]))})


def _trace(context: Context, name: str) -> Trace:
    trace = context.trace(name)
    return trace.first(min(len(trace), REQUESTS))


def _values(context: Context, traces: Sequence[str]) -> dict[str, object]:
    return {
        "held_against": accuracy_of_set(DEFAULT_COSTS),
        "source": context.source_of(*traces),
        "slo": SLO_TBT_P99_MS,
        "budget": BUDGET_USD_PER_HOUR,
    }


def _winners(
    trace: Trace, name: str, devices: Sequence[Device], kernels: Sequence[str] = ()
) -> list[dict[str, object]]:
    """Return the cheapest of each system, a row each; without numbers where nothing meets the limit."""
    question = Question(trace, model(name), load_costs(DEFAULT_COSTS, kernels), SLO_TBT_P99_MS)
    rows = []
    for system in SYSTEMS:
        point = _winner(question, system, devices)
        row: dict[str, object] = {"system": system, "usd_per_million_tokens": NOTHING}
        if point is not None:
            setup = question.setup(point.candidate)
            summary = replay(trace, system, setup, Workload(slo_tbt_ms=SLO_TBT_P99_MS)).summary
            row |= {
                "deployment": point.candidate.hardware,
                "batches": point.candidate.batches,
                "usd_per_hour": point.candidate.usd_per_hour,
                "usd_per_million_tokens": point.usd_per_million_tokens,
                "tokens_per_s": point.tokens_per_s,
                "mean_batch": point.mean_batch,
                "tbt_p99_ms": point.tbt_p99_ms,
                "binds": str(binding_of(summary)),
            }
        rows.append(row)
    return rows


def _winner(question: Question, system: str, devices: Sequence[Device]) -> Point | None:
    limits = Limits(BUDGET_USD_PER_HOUR)
    try:
        candidates = affordable(question, [system], list(devices), limits)
    except UserError:  # nothing holds the model
        return None
    return winner(search(question, candidates, jobs=1).points, SLO_TBT_P99_MS)
