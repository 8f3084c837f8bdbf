"""v1's attention: its share of a step by context (figure 4), and the bandwidth that it uses (figure 6)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.figures.claims import Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band, panels, stacked
from laminabench.figures.papers.v1.model_part import MEASURED_CARD
from laminabench.figures.style import CYCLE, PAGE, powers_of_two, published_line, sentence, sheet

_SHARE_BATCHES = (128, 512)
_CONTEXT, _PERCENT = 1500, 80.0  # from where on, and how much, the paper says


def fig4(ground: Ground) -> Made:
    """Attention's time over that of a whole step, without host."""
    shape, card = model("llama-13b"), device(MEASURED_CARD)
    contexts = np.arange(100, 4001, 100)
    parts = []
    for costs in ground.costs():
        for batch in _SHARE_BATCHES:
            attention = costs.attention_seconds(shape, card, batch * contexts, batch)
            step = attention + costs.model_step_seconds(shape, card, 1, batch)
            columns = {"costs": costs.name, "batch": batch, "context": contexts}
            parts.append({**columns, "attention_percent": 100 * attention / step})
    frame = stacked(parts)
    # The shortest context with more than the paper's share for both batches and sets.
    least = frame.groupby("context")["attention_percent"].min()
    all_above = int(least.index[least > _PERCENT].min())
    how = f"modelled: {ground.sets} on A100 (SXM, 80 GB), as if its memory sufficed"
    claim = Section("section 3.1", how)(
        f"share of attention from a context of {_CONTEXT} on, batches 128 and 512",
        _PERCENT,
        frame[frame["context"] == _CONTEXT]["attention_percent"],
        "%",
        "at least",
        remark=f"With batch {_SHARE_BATCHES[0]} it is a little less there; all are above from a context of "
        f"about {all_above:,} on.",
    )
    return Made(frame, [claim], f"{sentence(how)}; bands span the sets.", _draw_fig4)


def _draw_fig4(frame: pd.DataFrame) -> Figure:
    """A band for each batch."""
    figure, axes = sheet(height=2.7)
    palette = dict(zip(_SHARE_BATCHES, CYCLE, strict=False))
    band(axes, frame, "context", "attention_percent", hue="batch", style="batch", palette=palette)
    published_line(axes, _PERCENT, f"published: over {_PERCENT:.0f} % from {_CONTEXT} on")
    published_line(axes, _CONTEXT, "_", vertical=True)
    axes.set(xlabel="context, tokens", ylabel="attention's share of time, %", ylim=(0, 100))
    handles, labels = axes.get_legend_handles_labels()
    words = [f"batch {label}" if label.isdigit() else label for label in labels]
    figure.legend(handles, words, loc="outside upper left", ncols=2)
    return figure


_CONTEXTS = (512, 1024, 2048, 4096)
_DEVICES = (MEASURED_CARD, "h100", "rtx-3090")
_BATCHES = np.array([1, 2, 4, 8, 16, 32, 64])


def fig6(ground: Ground) -> Made:
    """MBU and MFU of decode attention on three devices, one of them with borrowed efficiencies."""
    shape = model("llama-13b")
    parts = []
    for costs in ground.costs():
        for name in _DEVICES:
            card = device(name)
            for context in _CONTEXTS:
                seconds = costs.attention_seconds(shape, card, _BATCHES * context, _BATCHES)
                read = _BATCHES * context * shape.kv_bytes_per_token
                # q times K and scores times V: two operations for each element of K and of V.
                operations = 2 * read / shape.dtype_bytes * shape.group
                columns = {"costs": costs.name, "device": name, "context": context, "batch": _BATCHES}
                shares = {
                    "mbu_percent": 100 * read / (seconds * card.bandwidth_bytes_per_s),
                    "mfu_percent": 100 * operations / (seconds * card.flops_for(shape.dtype)),
                }
                parts.append({**columns, **shares})
    frame = stacked(parts)
    best = frame.groupby("device")[["mbu_percent", "mfu_percent"]].max()
    measured = float(best["mbu_percent"][MEASURED_CARD])
    how = f"modelled: {ground.sets}, whose attention is vLLM 0.14's, measured with up to 8 KV heads"
    says = Section("section 3.1", how)
    claims = (
        says(
            "best bandwidth utilisation of attention, A100",
            80.0,
            measured,
            "%",
            "at least",
            remark=f"vLLM 0.14's kernel keeps at most {measured:.0f} % of an A100's bandwidth busy "
            f"here; on an H100 the same kernel comes to {best['mbu_percent']['h100']:.0f} %.",
        ),
        says(
            "compute utilisation of attention, any batch and context",
            5.0,
            float(best["mfu_percent"][MEASURED_CARD]),
            "%",
            "at most",
        ),
    )
    return Made(frame, claims, f"{sentence(how)}; RTX 3090 borrows A100's efficiency.", _draw_fig6)


def _draw_fig6(frame: pd.DataFrame) -> Figure:
    """A panel for each device, a line for each context."""
    figure, axes = sheet(1, 3, width=PAGE, height=2.2, sharey=True)
    for each, (name,), mine in panels(axes, frame, device=_DEVICES):
        palette = list(CYCLE[: len(_CONTEXTS)])
        band(each, mine, "batch", "mbu_percent", hue="context", palette=palette, marker="o")
        powers_of_two(each)
        published_line(each, 80, "published: over 80 %")
        each.set_title(name + (" (borrowed)" if name == "rtx-3090" else ""))
        each.set(xlabel="batch", ylabel="", ylim=(0, 100))
    axes[0].set_ylabel("MBU, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", title="context")
    return figure
