"""The cheapest deployment of each system: by model and devices (today-cost), by H20's price (today-price)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from laminabench.analysis.binding import binding_of
from laminabench.catalog.cost_file import COSTS_OF_TODAY, load_costs
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import Device, device, load_devices, priced
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import panels
from laminabench.render.style import INK, PAGE, SYSTEM_COLOURS, sentence, sheet
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
# A node of eight H200, and another of them or two of H20 beside it.
BUDGET_USD_PER_HOUR = 180.0
KINDS = {"H200": ("h200",), "H200 and H20": ("h200", "h20")}
# As many as fill the largest batches several times over.
REQUESTS = 3000
# Of what H20 costs an hour in the catalogue.
SHARES = (1.0, 0.5, 0.25)
# A system that has no deployment within the limit has no bar.
NOTHING = float("nan")


def cost(ground: Ground) -> Made:
    """Every model on both traces, from H200 alone and with H20 beside them; of a draft the quickest."""
    rows = [
        {"trace": trace, "devices": kinds, "model": name, **found}
        for trace in TRACES
        for kinds, names in KINDS.items()
        for name in (MODELS if ground.num_requests is None else MODELS[-1:])
        for found in _winners(_trace(ground, trace), name, [device(each) for each in names])
    ]
    return Made(pd.DataFrame(rows), (), _how(ground, TRACES), _draw_cost)


def price(ground: Ground) -> Made:
    """Mixtures of experts on azure-conv, as H20 gets cheaper; of a draft one."""
    usd = load_devices()["h20"].price_usd_per_hour
    assert usd is not None
    rows = []
    for name in MODELS[: 4 if ground.num_requests is None else 1]:
        for share in SHARES:
            known = priced(load_devices(), {"h20": share * usd})
            # Of vllm no device is an H20: it is the same at every price.
            found = _winners(_trace(ground, TRACES[0]), name, [known["h200"], known["h20"]])
            rows += [{"model": name, "h20_usd_per_hour": share * usd, **row} for row in found]
    return Made(pd.DataFrame(rows), (), _how(ground, TRACES[:1]), _draw_price)


def _trace(ground: Ground, name: str) -> Trace:
    whole = ground.trace(name)
    return whole.first(min(len(whole), REQUESTS))


def _how(ground: Ground, traces: Sequence[str]) -> str:
    costs = load_costs(COSTS_OF_TODAY)
    said = (
        f"modelled, {costs.held_against}; {ground.source_of(*traces)}, decoding alone, always saturated; the "
        f"cheapest deployment of each system with a TBT p99 of at most {SLO_TBT_P99_MS:g} ms, at most "
        f"${BUDGET_USD_PER_HOUR:g} an hour"
    )
    return f"{sentence(said)}."


def _winners(trace: Trace, name: str, devices: Sequence[Device]) -> list[dict[str, object]]:
    """The cheapest of each system, a row each; without numbers where nothing meets the limit."""
    question = Question(trace, model(name), load_costs(COSTS_OF_TODAY), SLO_TBT_P99_MS)
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


def _draw_cost(frame: pd.DataFrame) -> Figure:
    """Bars by model and system, in a panel for each trace and choice of devices."""
    figure, axes = sheet(len(TRACES), len(KINDS), width=PAGE, height=4.4, sharex=True, squeeze=False)
    width = 0.8 / len(SYSTEMS)
    for panel, (trace, kinds), some in panels(axes, frame, trace=TRACES, devices=KINDS):
        for place, system in enumerate(SYSTEMS):
            own = some[some["system"] == system].set_index("model").reindex(list(MODELS))
            at = np.arange(len(MODELS)) + (place - (len(SYSTEMS) - 1) / 2) * width
            panel.bar(
                *(at, own["usd_per_million_tokens"], width),
                color=SYSTEM_COLOURS[system],
                label=system,
                linewidth=0,
            )
        panel.set_title(f"{trace}, {kinds}", fontsize=7)
        panel.set_xticks(range(len(MODELS)), [name.replace("-", "-\n", 1) for name in MODELS], fontsize=6)
        panel.set_ylabel("\\$ a million tokens")
        panel.grid(visible=False, axis="x")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(SYSTEMS))
    return figure


def _draw_price(frame: pd.DataFrame) -> Figure:
    """Lines over H20's price, a panel a model."""
    names = list(dict.fromkeys(frame["model"]))
    figure, axes = sheet(1, len(names), width=PAGE, height=2.4, squeeze=False)
    for panel, (name,), some in panels(axes, frame, model=names):
        for system in SYSTEMS:
            own = some[some["system"] == system]
            line = partial(panel.plot, own["h20_usd_per_hour"], own["usd_per_million_tokens"])
            line(color=SYSTEM_COLOURS[system], marker="o", markersize=3, label=system)
        panel.set_title(name, fontsize=7)
        panel.set_xlabel("H20, \\$ an hour")
        panel.set_ylim(bottom=0)
    axes[0][0].set_ylabel("\\$ a million tokens", color=INK)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(SYSTEMS))
    return figure
