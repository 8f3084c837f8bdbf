"""Single decode steps of v2's Lamina: one batch of requests of one length, without pipelining.

Figure 12 shows what a token's time is spent on, figure 14 what sending Q early takes off it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.network import parse_network
from laminabench.figures.claims import STEP, Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band, ends, panels
from laminabench.figures.papers.v1.testbed import requests
from laminabench.render.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PAGE,
    PURPLE,
    VERMILION,
    published_line,
    sentence,
    sheet,
)
from laminabench.systems.modelled.lamina import NETWORK, build, default_deployment
from laminabench.systems.modelled.setup import Setup
from laminabench.workflows.replay import Workload, replay


class Step(NamedTuple):
    """Of one batch; parts are as if each were alone, so they can add up to more than the TBT."""

    costs: str
    model: str
    deployment: str
    context: int
    batch: int
    tbt_ms: float
    model_ms: float
    attention_ms: float
    network_ms: float
    host_ms: float


def serial(model_name: str, costs: CostSet, deployment: str | None = None) -> Setup:
    """Lamina with one batch, on Table 5's devices unless told."""
    shape = model(model_name)
    chosen = parse_deployment(deployment or default_deployment(shape))
    return Setup(shape, chosen, costs, parse_network(NETWORK), batches=1)


def most_requests(setup: Setup, context: int) -> int:
    """How many requests of this length fit."""
    return build(replace(setup, max_num_seqs=1)).spec.tokens_per_pool // context


def step(setup: Setup, context: int, batch: int) -> Step:
    """Simulated: the batch begins together and ends together; means of its iterations."""
    done = replay(
        requests(batch, context), "lamina", replace(setup, max_num_seqs=batch), Workload()
    ).outcome.iterations
    assert set(done["size"]) == {batch}, "a batch that does not fit is no batch"
    names = ("duration_s", "model_s", "attention_s", "network_s", "host_s")
    times = (1000 * float(done[name].mean()) for name in names)
    return Step(setup.costs.name, setup.model.name, str(setup.deployment), context, batch, *times)


def sizes(most: int) -> list[int]:
    """Batches to look at, four for each doubling, and what memory holds."""
    fourths = {part << place for part in (4, 5, 6, 7) for place in range(most.bit_length())}
    return sorted({batch for batch in {1, 2, 3} | fourths if batch < most} | {most})


MODELS = ("llama-33b", "llama-65b", "llama3-70b")
CONTEXTS = (4096, 8192)
_PARTS = {
    "tbt_ms": ("TBT", INK),
    "model_ms": ("model", BLUE),
    "attention_ms": ("attention", ORANGE),
    "network_ms": ("network", GREEN),
    "host_ms": ("host (assumed)", PURPLE),
}


def fig12(ground: Ground) -> Made:
    """Every model at both contexts with both cost sets, batches until memory is full."""
    steps = []
    for costs in ground.costs():
        for name in MODELS:
            setup = serial(name, costs)
            for context in CONTEXTS:
                steps += [step(setup, context, batch) for batch in sizes(most_requests(setup, context))]
    frame = pd.DataFrame(steps, columns=Step._fields)
    how = f"modelled: {ground.sets}, network fhbn; Table 5's devices are assumed"
    return Made(
        frame,
        _of_parts(frame, how),
        f"{sentence(how)}. Bands span the sets; lines end where memory is full. "
        "Parts are as if each were alone.",
        _draw_fig12,
    )


def _of_parts(frame: pd.DataFrame, how: str) -> list[Claim]:
    """Section 6.2 states no number: ours beside its words."""
    case = ["costs", "model", "context"]
    cases = frame.groupby(case)["batch"]
    parts = frame["model_ms"] + frame["attention_ms"] + frame["network_ms"]
    smallest, largest = (frame.loc[rows].set_index(case) for rows in (cases.idxmin(), cases.idxmax()))
    share = 100 * (frame["model_ms"] / parts)[frame["batch"] == 1]
    hidden = 100 * (1 - (frame["tbt_ms"] - frame["host_ms"]) / parts)
    says = Section("section 6.2", how, "performance", STEP)
    layers = frame["model"].map({name: model(name).layers for name in MODELS})
    trips = 1000 * layers / frame["tbt_ms"]
    rapidly = '"rapidly increases"'
    of_model = "The upper end is LLaMA3-70B's, whose batches reach hundreds."
    of_network = (
        "Half a round trip each way and layer is most of it, whatever the batch; only LLaMA3-70B's batches "
        "are large enough for the bytes to show."
    )
    growth = [
        says(
            f"{part}'s time with the largest batch over that with 1",
            published,
            _span(largest[f"{part}_ms"] / smallest[f"{part}_ms"], "times"),
            remark=remark,
        )
        for part, published, remark in (
            ("model", '"almost constant"', of_model),
            ("attention", rapidly, ""),
            ("network", rapidly, of_network),
        )
    ]
    return [
        says(
            "model's share of model, attention and network with a batch of 1, contexts of "
            f"{CONTEXTS[0]} and {CONTEXTS[1]}",
            '"dominates" for small batches',
            _span(share, "%"),
        ),
        *growth,
        says(
            "what TBT, without host, is below the sum of its parts, all batches",
            '"might be less than the sum"',
            _span(hidden, "%"),
        ),
        says(
            "TBT from a batch of 1 to the largest",
            '"within the SLO"',
            _span(frame["tbt_ms"], "ms"),
            where="section 1.2, section 6.1",
            remark="The paper names no SLO.",
        ),
        says(
            "round trips a second: layers over TBT",
            '"up to thousands"',
            f"{trips.min():,.0f} to {trips.max():,.0f} a second",
            where="section 3.2",
        ),
    ]


def _span(values: pd.Series[float], unit: str) -> str:
    return f"{values.min():.3g} to {values.max():.3g} {unit}"


def _draw_fig12(frame: pd.DataFrame) -> Figure:
    """Models beside each other, contexts below each other."""
    figure, axes = sheet(len(CONTEXTS), len(MODELS), width=PAGE, height=4.0)
    for panel, (context, name), mine in panels(axes, frame, context=CONTEXTS, model=MODELS):
        for column, (words, colour) in _PARTS.items():
            _line(panel, mine, column, colour, words)
        panel.locator_params(axis="x", integer=True)
        panel.set(xlabel="", ylabel="", ylim=(0, None))
        panel.set_title(f"{name}, {context} tokens\n{mine['deployment'].iloc[0]}")
    for row in axes:
        row[0].set_ylabel("ms a token")
    for each in axes[-1]:
        each.set_xlabel("batch")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=len(_PARTS))
    return figure


def _line(axes: Axes, frame: pd.DataFrame, column: str, colour: str, words: str) -> None:
    band(axes, frame, "batch", column, color=colour, label=words, marker="o", markersize=3)
    axes.set_xlim(0, None)


OVERLAP_CONTEXT = 4096
# Per cent; the first is called a speed-up, the second a reduction of latency.
OVERLAP_PERCENT = {"llama-65b": 13.2, "llama3-70b": 3.5}
_COLUMNS = {"llama-65b": "speed_up_percent", "llama3-70b": "reduction_percent"}
_WORDS = {"speed_up_percent": "speed-up, %", "reduction_percent": "latency reduction, %"}


def fig14(ground: Ground) -> Made:
    """Every batch with overlapping (Q sent early) and without, with both cost sets."""
    rows = []
    for costs in ground.costs():
        for name in OVERLAP_PERCENT:
            setup = serial(name, costs)
            without = replace(setup, overlap=False)
            for batch in sizes(most_requests(setup, OVERLAP_CONTEXT)):
                on, off = (step(each, OVERLAP_CONTEXT, batch).tbt_ms for each in (setup, without))
                percents = 100 * (off / on - 1), 100 * (1 - on / off)
                rows.append((costs.name, name, str(setup.deployment), batch, on, off, *percents))
    columns = ["costs", "model", "deployment", "batch", "enabled_ms", "disabled_ms", *_WORDS]
    frame = pd.DataFrame(rows, columns=columns)
    how = (
        f"modelled: {ground.sets}, network fhbn; Table 5's devices are assumed, "
        "combining is free, the host takes 2 ms and 20 us a request"
    )
    words = f"{sentence(how)}. Bands span the sets; lines end where memory is full."
    return Made(frame, _of_overlapping(frame, how, ground), words, _draw_fig14)


def _of_overlapping(frame: pd.DataFrame, how: str, ground: Ground) -> list[Claim]:
    says = Section("section 6.4", how, "performance", STEP)
    of_gqa = (
        "With GQA, K and V are a fifth of the rows of the QKV projection: the time of those rows and of "
        "their bytes on the network is all that is hidden here."
    )
    claims = [
        says(
            f"{_WORDS[column].removesuffix(', %')} of {name}, context {OVERLAP_CONTEXT}, best batch",
            OVERLAP_PERCENT[name],
            frame[frame["model"] == name].groupby("costs")[column].max(),
            "%",
            remark=of_gqa if name == "llama3-70b" else "",
            experiment=_with_more_to_hide(ground) if name == "llama3-70b" else "",
        )
        for name, column in _COLUMNS.items()
    ]
    mine = frame[frame["model"] == "llama-65b"]
    best = mine.loc[mine.groupby("costs")["speed_up_percent"].idxmax(), "batch"]
    last = mine.loc[mine.groupby("costs")["batch"].idxmax()]
    words = f"most at {best.min()} to {best.max()}" if best.min() < best.max() else f"most at {best.min()}"
    low, high = ends(last["speed_up_percent"])
    trend = says(
        "speed-up of llama-65b by batch",
        '"particularly notable for larger batch sizes"',
        f"{words}, {low:.1f} to {high:.1f} % at {last['batch'].max()}",
        remark="The opposite here beyond small batches: what is hidden is mostly the projection of K and V, "
        "which takes as long for any of these batches, while the whole step grows with the batch.",
    )
    without, grouped = (model(name).kv_bytes_per_token for name in OVERLAP_PERCENT)
    smaller = says(
        "KV of llama-65b over llama3-70b's, for a token",
        8.0,
        without / grouped,
        "times",
        how="computed: the catalogue's shapes",
        about="bookkeeping",
        rests_on=("shape",),
    )
    return [*claims, trend, smaller]


def _with_more_to_hide(ground: Ground) -> str:
    """Tests the remark: more of K and V, and fewer NICs for their bytes, should leave more to hide."""
    shape, network = model("llama3-70b"), parse_network(NETWORK)
    half = replace(network, bandwidth_bytes_per_s=network.bandwidth_bytes_per_s / 2)
    usual = [serial("llama3-70b", costs) for costs in ground.costs()]
    twice = [replace(setup, model=replace(shape, kv_heads=2 * shape.kv_heads)) for setup in usual]
    shared = [replace(setup, network=half) for setup in usual]
    heads, nic = (_words(map(_best_reduction, setups)) for setups in (twice, shared))
    return (
        f"with twice the KV heads it is {heads}; with one NIC for all four attention workers, which section "
        f"3.1 allows and which halves the bandwidth, {nic}."
    )


def _best_reduction(setup: Setup) -> float:
    """Per cent of the TBT that overlapping takes off, with the batch for which that is most."""
    return max(
        100 * (1 - _tbt_ms(setup, batch) / _tbt_ms(replace(setup, overlap=False), batch))
        for batch in sizes(most_requests(setup, OVERLAP_CONTEXT))
    )


def _tbt_ms(setup: Setup, batch: int) -> float:
    return step(setup, OVERLAP_CONTEXT, batch).tbt_ms


def _words(percents: Iterable[float]) -> str:
    each = sorted(percents)
    return f"{each[0]:.1f} to {each[-1]:.1f} %"


def _draw_fig14(frame: pd.DataFrame) -> Figure:
    """TBT above, what overlapping saves of it below."""
    figure, axes = sheet(2, len(OVERLAP_PERCENT), width=PAGE, height=3.8, sharex="col")
    for above, (name,), mine in panels(axes[0], frame, model=OVERLAP_PERCENT):
        _line(above, mine, "disabled_ms", VERMILION, "disabled")
        _line(above, mine, "enabled_ms", BLUE, "enabled")
        above.set(title=f"{name} on {mine['deployment'].iloc[0]}", ylabel="TBT, ms", ylim=(0, None))
    for below, (name,), mine in panels(axes[1], frame, model=OVERLAP_PERCENT):
        saved, published = _COLUMNS[name], OVERLAP_PERCENT[name]
        _line(below, mine, saved, BLUE, "_saved")
        published_line(below, published, f"published: up to {published} %")
        below.legend()
        below.set(xlabel="batch", ylabel=_WORDS[saved], ylim=(0, 1.25 * max(published, mine[saved].max())))
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return figure
