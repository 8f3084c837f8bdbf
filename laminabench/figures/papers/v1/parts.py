"""v1's two parts of a decode step, computation and attention: their time, rates, and the network between.

Figure 3 is computation's rate by batch, table 3 the network that it asks for, figure 5 how little several
small cards speed it up; figure 4 is attention's share by context, and figure 6 the bandwidth that it uses.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.cost_terms import ACTIVATION_BYTES, AllReduceCost, Origin
from laminabench.catalog.costs import CostSet
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, Device, device
from laminabench.catalog.models import ModelShape
from laminabench.catalog.step import model_step_seconds
from laminabench.figures.claims import KERNELS, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band, panels, set_bars, span, stacked
from laminabench.render.style import (
    CYCLE,
    PAGE,
    PUBLISHED,
    powers_of_two,
    published_line,
    sentence,
    sheet,
)

# The A100 that the cost sets were measured on.
MEASURED_CARD = "a100-80g-sxm"
# v1 Table 3, GB/s: by model and its number of A100, for these batches.
BATCHES = (128, 256, 512, 1024)
TABLE3 = {
    ("llama-13b", 1): (4.90, 8.12, 9.08, 10.06),
    ("llama-33b", 2): (5.94, 9.31, 11.56, 12.53),
    ("llama-65b", 4): (7.55, 11.78, 13.92, 15.90),
}


def parameters(shape: ModelShape) -> float:
    """N as the papers count it: the layers and one vocabulary table."""
    return shape.table3_bytes / shape.dtype_bytes


def mfu(
    costs: CostSet, shape: ModelShape, card: Device, tp: int, batches: NDArray[np.int64]
) -> NDArray[np.float64]:
    """2 N B over the step's time and the peak rate of all devices."""
    seconds = model_step_seconds(costs, shape, card, tp, batches)
    share: NDArray[np.float64] = (
        2 * parameters(shape) * batches / (seconds * tp * card.flops_for(shape.dtype))
    )
    return share


def least_bandwidth(
    shape: ModelShape, card: Device, count: int, share: float | NDArray[np.float64]
) -> float | NDArray[np.float64]:
    """Section 4.2: 4 e d B L bytes in the time of 2 N B operations; the batch cancels out.

    The rate is of all devices together: taken for one, Table 3 would imply more than the peak.
    """
    sent = 4 * ACTIVATION_BYTES * shape.hidden * shape.layers
    return sent * share * count * card.flops_for(shape.dtype) / (2 * parameters(shape))


def implied_mfu(shape: ModelShape, card: Device, count: int, bytes_per_s: float) -> float:
    """The MFU behind a published bandwidth: `least_bandwidth` turned around."""
    return float(bytes_per_s / least_bandwidth(shape, card, count, 1.0))


_MODEL = "llama-13b"
_MOST = 2048  # as far as the cost sets were measured
_IMPLIED = "implied by v1 Table 3"


def fig3(ground: Ground) -> Made:
    """MFU by batch of every cost set and of the ideal, with what Table 3 implies."""
    shape, card = model(_MODEL), device(MEASURED_CARD)
    batches = np.unique(np.geomspace(1, _MOST, 45).round()).astype(np.int64)
    shares = {
        costs.name: mfu(costs, shape, card, 1, batches) for costs in (*ground.costs(), load_costs("roofline"))
    }
    implied = [100 * implied_mfu(shape, card, 1, rate * GB) for rate in TABLE3[_MODEL, 1]]
    parts = [{"source": name, "batch": batches, "mfu_percent": 100 * share} for name, share in shares.items()]
    frame = stacked([*parts, {"source": _IMPLIED, "batch": BATCHES, "mfu_percent": implied}])
    how = f"modelled: {', '.join(ground.cost_sets)} on A100 (SXM, 80 GB)"
    rising = min(int(batches[np.argmax(shares[name])]) for name in ground.cost_sets)
    says = Section("section 3.1", f"{how}; measured up to {_MOST}", "performance", KERNELS)
    claim = says("batch up to which MFU rises", _MOST, rising, relation="at least")
    return Made(frame, [claim], f"{sentence(how)}.", _draw_fig3)


def _draw_fig3(frame: pd.DataFrame) -> Figure:
    """Lines for the cost sets, points for what Table 3 implies."""
    figure, axes = sheet(height=2.3)
    sources = [source for source in frame["source"].unique() if source != _IMPLIED]
    for colour, source in zip(CYCLE, sources, strict=False):
        mine = frame[frame["source"] == source]
        line, label = ("--", "roofline (ideal)") if source == "roofline" else ("-", source)
        axes.plot(mine["batch"], mine["mfu_percent"], color=colour, ls=line, label=label)
    printed = frame[frame["source"] == _IMPLIED]
    axes.plot(printed["batch"], printed["mfu_percent"], "o:", color=PUBLISHED, lw=1, label=_IMPLIED)
    powers_of_two(axes)
    axes.set(xlabel="batch", ylabel="MFU, %", ylim=(0, 105))
    axes.legend(loc="upper left")
    return figure


_REMARK = (
    "The formula is the paper's; what differs is the MFU. The printed bandwidths imply {implied:.0f} % at "
    "this batch, measured kernels of vLLM and Vidur come to {low:.0f} to {high:.0f} %: v1's model part "
    "was slower, why is not in the paper."
)
# GB/s each way of PCIe 4.0 x16: A100s that no NVLink joins.
_PCIE = 32.0
_TABLE3_COLUMNS = (
    *("model", "A100", "batch", "published\nGB/s", "ours, low\nGB/s", "ours, high\nGB/s"),
    *("implied\nMFU, %", "MFU, low\n%", "MFU, high\n%"),
)


def table3(ground: Ground) -> Made:
    """The paper's formula with the MFU of both cost sets, and the MFU that the printed numbers imply."""
    card = device(MEASURED_CARD)
    how = f"modelled: MFU of {ground.sets} on A100 in the paper's formula"
    says = Section("table 3", how, "performance", KERNELS)
    rows, claims = [], []
    for (name, count), published in TABLE3.items():
        shape = model(name)
        shares = [mfu(costs, shape, card, count, np.array(BATCHES)) for costs in ground.costs()]
        lows, highs = np.min(shares, axis=0), np.max(shares, axis=0)
        experiments = _slowed(ground.costs(), shape, card, count, published)
        for i, (batch, printed, *mine) in enumerate(zip(BATCHES, published, lows, highs, strict=True)):
            ends = [float(least_bandwidth(shape, card, count, float(end))) / GB for end in mine]
            implied = 100 * implied_mfu(shape, card, count, printed * GB)
            low, high = (100 * float(end) for end in mine)
            rows.append((name, count, batch, printed, *ends, implied, low, high))
            remark = _REMARK.format(implied=implied, low=low, high=high)
            what = f"{name} on {count} A100, batch {batch}"
            claims.append(says(what, printed, ends, "GB/s", remark=remark, experiment=experiments[i]))
    frame = pd.DataFrame(rows, columns=_TABLE3_COLUMNS)
    claims.append(
        says(
            "no more is needed, for batches up to 1024",
            20.0,
            float(frame["ours, high\nGB/s"].max()),
            "GB/s",
            "at most",
            where="section 4.2",
            remark=f"With the MFU of measured kernels these need more: {_above(frame, 20.0)}. The rows are "
            "of all devices together, and each A100 with a 200 Gbit/s NIC of its own has 25 GB/s.",
            experiment="LLaMA-65B's at 1024, " + experiments[-1],
        )
    )
    each = frame["ours, high\nGB/s"] / frame["A100"]
    claims.append(
        says(
            "NIC of each computation device that suffices, batches up to 1024",
            200.0,
            float(8 * each.max()),
            "Gbit/s",
            "at most",
            where="section 4.2, section 1",
        )
    )
    words = "all devices of a row together. Implied MFU: what the published value stands for."
    return Made(frame, claims, f"{sentence(how)}; {words}")


def _slowed(
    sets: list[CostSet], shape: ModelShape, card: Device, count: int, published: tuple[float, ...]
) -> list[str]:
    """Each batch of a row with one more constant in a step, and with all-reduce over PCIe besides."""
    sent = 4 * ACTIVATION_BYTES * shape.hidden * shape.layers * np.array(BATCHES)
    first = sent[0] / (published[0] * GB)
    links = {"": card, " and all-reduce over PCIe 4.0": replace(card, interchip_bytes_per_s=_PCIE * GB)}
    words = [""] * len(BATCHES)
    for link, on in list(links.items())[: 1 + (count > 1)]:
        steps = [model_step_seconds(costs, shape, on, count, np.array(BATCHES)) for costs in sets]
        more = [float(first - step[0]) for step in steps]
        rates = [sent / (step + constant) / GB for step, constant in zip(steps, more, strict=True)]
        for i in range(len(BATCHES)):
            words[i] += (
                f"{'; ' if link else ''}with {span((1000 * each for each in more), '.0f')} ms more in every "
                f"step{link} {span((float(rate[i]) for rate in rates), '.1f')} GB/s"
            )
    return [f"{each} (the ms make batch {BATCHES[0]} come out)." for each in words]


def _above(frame: pd.DataFrame, limit: float) -> str:
    """From which batch on a model's upper end is above the limit."""
    first = frame[frame["ours, high\nGB/s"] > limit].groupby("model", sort=False)["batch"].min()
    return ", ".join(f"{name} from batch {batch} on" for name, batch in first.items())


_DEGREES = (1, 2, 4)
# The paper's batch is not in its text.
_DEGREE_BATCHES = (1, 16, 64, 128, 256, 512)
_SPEED_UP = 1.41
_SMALL_CARD = "rtx-4080"
_HOST_GB_PER_S, _HOST_US = 8.4, 8.4


def fig5(ground: Ground) -> Made:
    """One RTX 4080's time over that of several, by batch."""
    shape, card = model("llama-7b"), device(_SMALL_CARD)
    rows = []
    for costs in map(through_host, ground.costs()):
        for batch in _DEGREE_BATCHES:
            alone = float(model_step_seconds(costs, shape, card, 1, batch))
            for degree in _DEGREES:
                seconds = float(model_step_seconds(costs, shape, card, degree, batch))
                rows.append((costs.name, batch, degree, 1000 * seconds, alone / seconds))
    frame = pd.DataFrame(rows, columns=["costs", "batch", "devices", "step_ms", "speed_up"])
    how = (
        f"modelled: {ground.sets}, A100's efficiencies on the RTX 4080's data sheet (no measurement of it); "
        "all-reduce through host memory, as others measured it between two RTX 4090 that cannot reach each "
        f"other's memory either: {_HOST_GB_PER_S} GB/s each way at once and {_HOST_US} us, over four "
        "three times the latter, as a ring has three times the steps"
    )
    says = Section("section 3.2", how, "performance", (*KERNELS, "assumption"))
    share = 100 * card.flops_for("bf16") / device("a100-80g").flops_for("bf16")
    claims = (
        says(
            "peak rate of an RTX 4080 over an A100's",
            31.2,
            share,
            "%",
            how="computed: data sheets",
            about="bookkeeping",
            rests_on=("data sheet",),
        ),
        says(
            "speed-up of a model of 7 billion parameters by 4 devices, "
            f"batches {_DEGREE_BATCHES[0]} to {_DEGREE_BATCHES[-1]}",
            _SPEED_UP,
            frame[frame["devices"] == 4]["speed_up"],
            "times",
            remark="The paper does not say at which batch. Over ours the speed-up falls from the upper to "
            "the lower end, as all-reduce takes over.",
            experiment=_at_which_batch(ground.costs(), shape, card),
        ),
    )
    return Made(frame, claims, f"{sentence(how)}.", _draw_fig5)


def through_host(costs: CostSet) -> CostSet:
    """With the all-reduce of cards that cannot reach each other's memory. A ring has 2 (p - 1) steps."""
    origin = Origin(
        "assumed",
        "RTX 4090: p2pBandwidthLatencyTest without peer access (gist muellerzr/fbfabd0f, 16.8 GB/s both "
        "ways); NCCL with NCCL_P2P_DISABLE=1 over two (tinygrad/open-gpu-kernel-modules issue 45)",
    )
    rate = _HOST_GB_PER_S * GB / device(_SMALL_CARD).interchip_bytes_per_s
    name = costs.measured_as(device(_SMALL_CARD))
    terms = {
        (name, degree): AllReduceCost((degree - 1) * _HOST_US * 1e-6, rate, origin)
        for degree in _DEGREES
        if degree > 1
    }
    return msgspec.structs.replace(costs, allreduce=terms)


def _at_which_batch(sets: list[CostSet], shape: ModelShape, card: Device) -> str:
    """Where the published speed-up comes out, and what the all-reduce has to do with it."""
    batches = np.arange(1, _DEGREE_BATCHES[-1] + 1)

    def speed_up(costs: CostSet) -> NDArray[np.float64]:
        alone, four = (model_step_seconds(costs, shape, card, degree, batches) for degree in (1, 4))
        return alone / four

    last = [int(batches[speed_up(through_host(costs)) >= _SPEED_UP].max()) for costs in sets]
    least = min(float(speed_up(costs).min()) for costs in sets)
    return (
        f"{_SPEED_UP} comes out at a batch of {span(last, '.0f')}. If cards reached each other's memory over "
        f"PCIe 4.0 with an A100's share of the link, no batch would have less than {least:.2f}."
    )


def _draw_fig5(frame: pd.DataFrame) -> Figure:
    """Groups of bars by batch; lines span the cost sets."""
    figure, axes = sheet(height=2.7)
    set_bars(axes, frame, "batch", "speed_up", hue="devices", palette=list(CYCLE[: len(_DEGREES)]))
    published_line(axes, _SPEED_UP, f"published, four devices: {_SPEED_UP}")
    axes.set(xlabel="batch", ylabel="speed-up")
    handles, labels = axes.get_legend_handles_labels()
    words = {"1": "1 device", "2": "2 devices", "4": "4 devices"}
    labels = [words.get(label, label) for label in labels]
    figure.legend(handles, labels, loc="outside upper left", ncols=2)
    return figure


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
            step = attention + model_step_seconds(costs, shape, card, 1, batch)
            columns = {"costs": costs.name, "batch": batch, "context": contexts}
            parts.append({**columns, "attention_percent": 100 * attention / step})
    frame = stacked(parts)
    # The shortest context with more than the paper's share for both batches and sets.
    least = frame.groupby("context")["attention_percent"].min()
    all_above = int(least.index[least > _PERCENT].min())
    how = f"modelled: {ground.sets} on A100 (SXM, 80 GB), as if its memory sufficed"
    claim = Section("section 3.1", how, "performance", KERNELS)(
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


_MBU_CONTEXTS = (512, 1024, 2048, 4096)
_MBU_DEVICES = (MEASURED_CARD, "h100", "rtx-3090")
_MBU_BATCHES = np.array([1, 2, 4, 8, 16, 32, 64])


def fig6(ground: Ground) -> Made:
    """MBU and MFU of decode attention on three devices, one of them with borrowed efficiencies."""
    shape = model("llama-13b")
    parts = []
    for costs in ground.costs():
        for name in _MBU_DEVICES:
            card = device(name)
            for context in _MBU_CONTEXTS:
                seconds = costs.attention_seconds(shape, card, _MBU_BATCHES * context, _MBU_BATCHES)
                read = _MBU_BATCHES * context * shape.kv_bytes_per_token
                # q times K and scores times V: two operations for each element of K and of V.
                operations = 2 * read / shape.dtype_bytes * shape.group
                columns = {"costs": costs.name, "device": name, "context": context, "batch": _MBU_BATCHES}
                shares = {
                    "mbu_percent": 100 * read / (seconds * card.bandwidth_bytes_per_s),
                    "mfu_percent": 100 * operations / (seconds * card.flops_for(shape.dtype)),
                }
                parts.append({**columns, **shares})
    frame = stacked(parts)
    best = frame.groupby("device")[["mbu_percent", "mfu_percent"]].max()
    measured = float(best["mbu_percent"][MEASURED_CARD])
    how = f"modelled: {ground.sets}, whose attention is vLLM 0.14's, measured with up to 8 KV heads"
    says = Section("section 3.1", how, "performance", KERNELS)
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
    for each, (name,), mine in panels(axes, frame, device=_MBU_DEVICES):
        palette = list(CYCLE[: len(_MBU_CONTEXTS)])
        band(each, mine, "batch", "mbu_percent", hue="context", palette=palette, marker="o")
        powers_of_two(each)
        published_line(each, 80, "published: over 80 %")
        each.set_title(name + (" (borrowed)" if name == "rtx-3090" else ""))
        each.set(xlabel="batch", ylabel="", ylim=(0, 100))
    axes[0].set_ylabel("MBU, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", title="context")
    return figure
