"""v2's analysis of LLaMA3-70B: the model's operators, attention's, and the network (figures 2 to 4)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from laminabench.catalog.cost_terms import ACTIVATION_BYTES
from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, Device, device
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import parse_network
from laminabench.catalog.step import model_step_seconds
from laminabench.figures.claims import KERNELS, Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band, panels, stacked
from laminabench.figures.style import CYCLE, INK, OVER_GRID, PAGE, published_line, sentence, sheet
from laminabench.systems.modelled.homogeneous import build
from laminabench.systems.modelled.setup import Setup

# Table 2's range.
BATCHES = (1, *range(8, 1025, 8))
# One H100 does not hold the weights.
DEGREES = (2, 4, 8)
ROOFLINE = "roofline"
_SMALL, _MFU_PERCENT = 100, 20.0
_DEGREE_COLOURS = {f"{degree} H100": colour for degree, colour in zip(DEGREES, CYCLE, strict=False)}


def fig2(ground: Ground) -> Made:
    """A step without attention with both cost sets, and by the paper's roofline."""
    shape, card = model("llama3-70b"), device("h100")
    batches = np.array(BATCHES)
    parts = []
    for degree in DEGREES:
        times = {
            costs.name: model_step_seconds(costs, shape, card, degree, batches) for costs in ground.costs()
        }
        times[ROOFLINE] = roofline(shape, card, degree, batches)
        for name, seconds in times.items():
            mfu = 100 * flops(shape, batches) / (seconds * degree * card.flops_for(shape.dtype))
            columns = {"costs": name, "devices": f"{degree} H100", "batch": batches}
            parts.append({**columns, "ms": 1000 * seconds, "mfu_percent": mfu})
    frame = stacked(parts)
    how = f"modelled: {ground.sets}; GEMMs, element-wise operations, all-reduce and LM head"
    return Made(
        frame,
        [_mfu_claim(frame, devices, how) for devices in _DEGREE_COLOURS],
        f"{sentence(how)}. Bands span the sets; dashed: the paper's roofline, "
        "2NB operations and eN + 2eBd bytes at the data sheet's rates.",
        _draw_fig2,
    )


def flops(shape: ModelShape, batches: NDArray[np.int64]) -> NDArray[np.float64]:
    """2 N B, of the matrices that are multiplied with: looking up an embedding is no operation."""
    count = shape.weights()
    return np.asarray(2 * (count.matrices + count.lm_head) * batches, np.float64)


def roofline(shape: ModelShape, card: Device, degree: int, batches: NDArray[np.int64]) -> NDArray[np.float64]:
    """Section 2.2.1: the longer of 2 N B operations and e N + 2 e B d bytes, on so many devices."""
    count, element = shape.weights(), shape.dtype_bytes
    moved = element * (count.matrices + count.lm_head) + 2 * element * batches * shape.hidden
    longer: NDArray[np.float64] = np.maximum(
        flops(shape, batches) / (degree * card.flops_for(shape.dtype)),
        moved / (degree * card.bandwidth_bytes_per_s),
    )
    return longer


def _mfu_claim(frame: pd.DataFrame, devices: str, how: str) -> Claim:
    modelled = frame[(frame["costs"] != ROOFLINE) & (frame["devices"] == devices)]
    largest = int(modelled[modelled["batch"] < _SMALL]["batch"].max())
    keeping = modelled.groupby("batch")["mfu_percent"].max()
    until = int(keeping.index[keeping <= _MFU_PERCENT].max())
    remark = f"With the faster set it is below {_MFU_PERCENT:.0f} % up to a batch of {until}."
    return Section("section 2.2.1", how, "performance", KERNELS)(
        f"MFU below a batch of {_SMALL}, on {devices}; ours at {largest}",
        _MFU_PERCENT,
        modelled[modelled["batch"] == largest]["mfu_percent"],
        "%",
        "at most",
        remark="" if until >= largest else remark,
    )


def _draw_fig2(frame: pd.DataFrame) -> Figure:
    """Time on the left, MFU on the right."""
    figure, (times, shares) = sheet(1, 2, width=PAGE, height=2.7)
    for axes, column in ((times, "ms"), (shares, "mfu_percent")):
        band(axes, frame[frame["costs"] != ROOFLINE], "batch", column, hue="devices", palette=_DEGREE_COLOURS)
        for devices, colour in _DEGREE_COLOURS.items():
            ideal = frame[(frame["costs"] == ROOFLINE) & (frame["devices"] == devices)]
            # The MFU of the ideal is the same for all.
            axes.plot(ideal["batch"], ideal[column], color=colour if column == "ms" else INK, ls="--", lw=1)
        axes.set(xlabel="batch", xlim=(0, BATCHES[-1]))
    times.set(ylabel="ms an iteration", ylim=(0, None))
    published_line(shares, _MFU_PERCENT, f"published: below {_MFU_PERCENT:.0f} % up to a batch of {_SMALL}")
    published_line(shares, _SMALL, "_", vertical=True)
    shares.set(ylabel="MFU, %", ylim=(0, 100))
    figure.legend(*shares.get_legend_handles_labels(), loc="outside upper left", ncols=5)
    return figure


CONTEXTS = (4096, 8192)
DEVICES = ("h100", "h20")
_FEW, _MBU_PERCENT, _FULL, _FULL_CONTEXT = 20, 70.0, 30, 8192
_DEVICE_COLOURS = dict(zip(DEVICES, CYCLE, strict=False))


def fig3(ground: Ground) -> Made:
    """All layers of attention on one device with both cost sets, by batch until memory is full."""
    shape = model("llama3-70b")
    parts = []
    for costs in ground.costs():
        for name in DEVICES:
            card = device(name)
            for context in CONTEXTS:
                batches = np.arange(1, int(fitting(name, context)) + 1)
                seconds = costs.attention_seconds(shape, card, batches * context, batches)
                read = batches * context * shape.kv_bytes_per_token
                mbu = 100 * read / (seconds * card.bandwidth_bytes_per_s)
                columns = {"costs": costs.name, "device": name, "context": context, "batch": batches}
                parts.append({**columns, "ms": 1000 * seconds, "mbu_percent": mbu})
    frame = stacked(parts)
    how = (
        f"modelled: {ground.sets}, which share their measurements of attention (on H100; "
        "H20 with H100's efficiencies is assumed)"
    )
    says = Section("section 2.2.2", how, "performance", (*KERNELS, "assumption"))
    there = frame[frame["batch"] == _FEW]
    of, contexts = f"MBU with a batch of {_FEW} on", f"contexts of {CONTEXTS[0]} and {CONTEXTS[1]}"
    claims = [
        says(
            f"{of} {name}, {contexts}",
            _MBU_PERCENT,
            there[there["device"] == name]["mbu_percent"],
            "%",
            "at least",
        )
        for name in DEVICES
    ]
    of_steps = [_step_mfu(costs, degree, context) for costs, degree, context in _full_steps(ground, CONTEXTS)]
    short = [_step_mfu(*each) for each in _full_steps(ground, (_SHORT,))]
    claims.append(
        says(
            f"MFU of a whole step on {_SERVING[0]} and {_SERVING[1]} H100, with as many requests of "
            f"{CONTEXTS[0]} or {CONTEXTS[1]} tokens as vLLM has room for",
            _MFU_PERCENT,
            of_steps,
            "%",
            "at most",
            where="section 1.1",
            how=f"modelled: {ground.sets}",
            rests_on=KERNELS,
            remark=f'The paper says "often": with {_SHORT} tokens, which is short, it is '
            f"{min(short):.0f} to {max(short):.0f} %.",
        )
    )
    claims.append(
        says(
            f"requests of {_FULL_CONTEXT} tokens whose KV fills an H100",
            float(_FULL),
            fitting("h100", _FULL_CONTEXT),
            how="computed: 80 GB over the KV bytes of a request",
            about="bookkeeping",
            rests_on=("data sheet", "shape"),
        )
    )
    words = (
        f"{sentence(how)}; one device with all heads. Lines end where its memory is full. Others measured on "
        "H20 24 to 27 % with FlashAttention-3's tiles of 128 rows, 43 to 46 % with vLLM's of 64, 79 to 86 % "
        "with FlashInfer and 90 to 96 % with HPC-Ops."
    )
    return Made(frame, claims, words, _draw_fig3)


# What holds the weights with room for KV, and a request of about azure-conv's mean length.
_SERVING, _SHORT = (4, 8), 1260


def _full_steps(ground: Ground, contexts: tuple[int, ...]) -> list[tuple[CostSet, int, int]]:
    return [(costs, degree, each) for costs in ground.costs() for degree in _SERVING for each in contexts]


def _step_mfu(costs: CostSet, degree: int, context: int) -> float:
    """Per cent, of a step without host with every request of this length that vLLM has room for."""
    shape, card = model("llama3-70b"), device("h100")
    setup = Setup(shape, parse_deployment(f"{degree}xh100"), costs, parse_network("fhbn"))
    most = np.array([int(build(setup).spec.tokens_per_pool // context)])
    seconds = model_step_seconds(costs, shape, card, degree, most)
    seconds = seconds + costs.attention_seconds(shape, card, most * context, most, degree)
    return float(100 * flops(shape, most)[0] / (seconds[0] * degree * card.flops_for(shape.dtype)))


def fitting(device_name: str, context: int) -> float:
    """Requests of this length whose KV is as large as the whole memory, weights or not."""
    return device(device_name).memory_bytes / (context * model("llama3-70b").kv_bytes_per_token)


def _draw_fig3(frame: pd.DataFrame) -> Figure:
    """Time on the left, MBU on the right."""
    figure, (times, shares) = sheet(1, 2, width=PAGE, height=3.0)
    for axes, column in ((times, "ms"), (shares, "mbu_percent")):
        _attention_lines(axes, frame, column)
    times.set(ylabel="ms an iteration", ylim=(0, None))
    published_line(times, _FULL, "_", vertical=True)
    times.annotate(
        f"published: {_FULL} requests of\n{_FULL_CONTEXT} fill an H100",
        (_FULL, 0),
        xycoords=("data", "axes fraction"),
        xytext=(3, 3),
        textcoords="offset points",
        va="bottom",
        fontsize=6,
        bbox=OVER_GRID,
    )
    published_line(shares, _MBU_PERCENT, f"published: above {_MBU_PERCENT:.0f} % from a batch of {_FEW} on")
    published_line(shares, _FEW, "_", vertical=True)
    shares.set(ylabel="MBU, %", ylim=(0, 100))
    figure.legend(*shares.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


def _attention_lines(axes: Axes, frame: pd.DataFrame, column: str) -> None:
    shown = frame.assign(line=frame["device"] + ", " + frame["context"].astype(str) + " tokens")
    names = list(dict.fromkeys(shown["line"]))
    palette = {name: _DEVICE_COLOURS[name.split(",")[0]] for name in names}
    dashes = {name: (2, 1) if str(CONTEXTS[1]) in name else "" for name in names}
    band(axes, shown, "batch", column, hue="line", style="line", palette=palette, dashes=dashes)
    axes.set(xlabel="batch", xlim=(0, None))


ALPHA = 0.2
DOPS = ((2, 2), (4, 4))
# Not in the paper's text.
NETWORK_CONTEXTS = (4096, 8192, 16384)
NETWORK_BATCHES = (1, *range(5, 301, 5))
_LIMIT = 30.0
_CONTEXT_COLOURS = dict(zip(NETWORK_CONTEXTS, CYCLE, strict=False))
_KINDS = {"aggregate_gb_per_s": "all NICs together", "nic_gb_per_s": "each NIC"}


def fig4(ground: Ground) -> Made:
    """The bandwidth that splitting attention off asks of the network, with the times of both cost sets."""
    shape, batches = model("llama3-70b"), np.array(NETWORK_BATCHES)
    parts = []
    for costs in ground.costs():
        for dop in DOPS:
            for context in NETWORK_CONTEXTS:
                needed = least_bandwidth(costs, shape, dop, context, batches) / GB
                columns = {"costs": costs.name, "dop": str(dop), "context": context, "batch": batches}
                rates = dict(zip(_KINDS, (needed, needed / min(dop)), strict=True))
                parts.append({**columns, **rates})
    frame = stacked(parts)
    how = f"modelled: {ground.sets} in the formula of section 3.1, alpha {ALPHA}"
    says = Section("section 3.1", how, "performance", (*KERNELS, "assumption"))
    most = frame.groupby(["dop", "costs"], sort=False)[list(_KINDS)].max()
    remark = (
        "Of all links together, with the faster sets and the shortest context, more is needed; each worker "
        "has a NIC of its own, and for each the claim holds. The paper does not say which it means."
    )
    nic = device("h100").nic_bytes_per_s / GB
    enough = _enough(ground)
    claims = [
        says(
            f"bandwidth for batches up to {NETWORK_BATCHES[-1]}, alpha {ALPHA}, DOP {dop}, {words}",
            _LIMIT,
            most.loc[str(dop)][column],
            "GB/s",
            "at most",
            where="section 3.1, figure 4",
            remark=remark if column == "aggregate_gb_per_s" else "",
            experiment=enough if column == "aggregate_gb_per_s" else "",
        )
        for dop in DOPS
        for column, words in _KINDS.items()
    ]
    of_nics = 8 * most["nic_gb_per_s"]
    claims += [
        says("what each GPU's NIC has to carry", 8 * nic, of_nics, "Gbit/s", "at most"),
        says(
            "the same, where 200 or 400 Gbit/s are said to suffice",
            200.0,
            of_nics,
            "Gbit/s",
            "at most",
            where="section 1.2",
        ),
    ]
    return Made(
        frame,
        claims,
        f"{sentence(how)}; DOPs of (2, 2) and (4, 4) and the contexts are assumed. Bands span the sets.",
        _draw_fig4,
    )


def _enough(ground: Ground) -> str:
    """Tests the remark: from which contexts on the limit holds of all links, and of each NIC."""
    batches = np.array(NETWORK_BATCHES)

    def shortest(dop: tuple[int, int], links: int) -> int:
        return next(
            context
            for context in range(512, 65536, 512)
            if max(
                least_bandwidth(costs, model("llama3-70b"), dop, context, batches).max()
                for costs in ground.costs()
            )
            <= links * _LIMIT * GB
        )

    together, each = (
        " and ".join(f"{shortest(dop, links(dop)):,} tokens with {dop}" for dop in DOPS)
        for links in (lambda dop: 1, min)
    )
    return (
        f"varying the context, the limit holds of all links together from {together} on, and of each NIC "
        f"from {each} on."
    )


def least_bandwidth(
    costs: CostSet, shape: ModelShape, dop: tuple[int, int], context: int, batches: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Section 3.1: (2 + 2/G) e d B L bytes in alpha times a step without network, all links together."""
    h100, h20 = device("h100"), device("h20")
    sent = (2 + 2 / shape.group) * ACTIVATION_BYTES * shape.hidden * batches * shape.layers
    model_s = model_step_seconds(costs, shape, h100, dop[0], batches)
    attention_s = costs.attention_seconds(shape, h20, batches * context, batches, dop[1])
    needed: NDArray[np.float64] = sent / (ALPHA * (model_s + attention_s))
    return needed


def _draw_fig4(frame: pd.DataFrame) -> Figure:
    """DOPs beside each other, all NICs above and each NIC below."""
    figure, axes = sheet(2, 2, width=PAGE, height=3.8, sharex=True, sharey="row")
    for row, (kind, words) in zip(axes, _KINDS.items(), strict=True):
        for panel, (dop,), mine in panels(row, frame, dop=map(str, DOPS)):
            band(panel, mine, "batch", kind, hue="context", palette=_CONTEXT_COLOURS)
            published_line(panel, _LIMIT, f"published: at most {_LIMIT:.0f} GB/s")
            panel.set(xlabel="batch", ylabel=f"{words},\nGB/s", xlim=(0, NETWORK_BATCHES[-1]))
            if kind == "aggregate_gb_per_s":
                panel.set_title(f"DOP {dop}")
        row[0].set_ylim(0, None)
    handles, labels = axes[0][0].get_legend_handles_labels()
    named = [f"{label} tokens" if label.isdigit() else label for label in labels]
    figure.legend(handles, named, loc="outside upper left", ncols=4)
    return figure
