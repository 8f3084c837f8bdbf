"""Figure 12: what a token's time is spent on, by batch, without pipelining."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band
from laminabench.figures.papers.v2.steps import Step, most_requests, serial, sizes, step
from laminabench.figures.style import BLUE, GREEN, INK, ORANGE, PAGE, PURPLE, foot, no_legend, sentence, sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Token generation latency, in parts"
MODELS = ("llama-33b", "llama-65b", "llama3-70b")
CONTEXTS = (4096, 8192)
_PARTS = {
    "tbt_ms": ("TBT", INK),
    "model_ms": ("model", BLUE),
    "attention_ms": ("attention", ORANGE),
    "network_ms": ("network", GREEN),
    "host_ms": ("host (assumed)", PURPLE),
}


def make(ground: Ground) -> Made:
    """Every model at both contexts with both cost sets, batches until memory is full."""
    import pandas as pd

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
        _claims(frame, how),
        f"{sentence(how)}. Bands span the sets; lines end where memory is full. "
        "Parts are as if each were alone.",
    )


def _claims(frame: pd.DataFrame, how: str) -> tuple[Claim, ...]:
    """Section 6.2 states no number: ours beside its words."""
    case = ["costs", "model", "context"]
    cases = frame.groupby(case)["batch"]
    parts = frame["model_ms"] + frame["attention_ms"] + frame["network_ms"]
    smallest, largest = (frame.loc[rows].set_index(case) for rows in (cases.idxmin(), cases.idxmax()))
    share = 100 * (frame["model_ms"] / parts)[frame["batch"] == 1]
    hidden = 100 * (1 - (frame["tbt_ms"] - frame["host_ms"]) / parts)
    growth = {
        part: _span(largest[f"{part}_ms"] / smallest[f"{part}_ms"], "times")
        for part in ("model", "attention", "network")
    }
    return (
        Claim(
            "model's share of model, attention and network with a batch of 1",
            "section 6.2",
            '"dominates" for small batches',
            _span(share, "%"),
            how,
        ),
        Claim(
            "model's time with the largest batch over that with 1",
            "section 6.2",
            '"almost constant"',
            growth["model"],
            how,
            remark="The upper end is LLaMA3-70B's, whose batches reach hundreds.",
        ),
        Claim(
            "attention's time with the largest batch over that with 1",
            "section 6.2",
            '"rapidly increases"',
            growth["attention"],
            how,
        ),
        Claim(
            "network's time with the largest batch over that with 1",
            "section 6.2",
            '"rapidly increases"',
            growth["network"],
            how,
            remark="Half a round trip each way and layer is most of it, whatever the batch; only "
            "LLaMA3-70B's batches are large enough for the bytes to show.",
        ),
        Claim(
            "what TBT, without host, is below the sum of its parts, all batches",
            "section 6.2",
            '"might be less than the sum"',
            _span(hidden, "%"),
            how,
        ),
    )


def _span(values: pd.Series[float], unit: str) -> str:
    return f"{values.min():.3g} to {values.max():.3g} {unit}"


def draw(made: Made) -> Figure:
    """Models beside each other, contexts below each other."""
    figure, axes = sheet(len(CONTEXTS), len(MODELS), width=PAGE, height=4.0)
    for column, name in enumerate(MODELS):
        for row, context in enumerate(CONTEXTS):
            mine = made.frame[(made.frame["model"] == name) & (made.frame["context"] == context)]
            _parts(axes[row][column], mine)
            axes[row][column].set_title(f"{name}, {context} tokens\n{mine['deployment'].iloc[0]}")
    for row in axes:
        row[0].set_ylabel("ms a token")
    for each in axes[-1]:
        each.set_xlabel("batch")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=len(_PARTS))
    foot(figure, made.how)
    return figure


def _parts(axes: Axes, frame: pd.DataFrame) -> None:
    for column, (words, colour) in _PARTS.items():
        band(axes, frame, "batch", column, color=colour, label=words, marker="o", markersize=3)
    no_legend(axes)
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="", ylabel="", ylim=(0, None), xlim=(0, None))
