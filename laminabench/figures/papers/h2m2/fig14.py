"""H2M2 Figure 14: what is in HBM while GPT3-175B is decoded, by sublayer and length."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from laminabench.catalog.hardware import GB
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.ground import GPT3, H2M2, ORACLE, how, lengths_text, original, plan_of
from laminabench.figures.style import BLUE, GREEN, INK, ORANGE, PAGE, PUBLISHED, foot, sentence, sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "HBM of GPT3-175B by sublayer, batch 32"
# Closer together than those of figure 12, so that one sees where a sublayer leaves HBM.
_CASE = replace(GPT3, lengths=tuple(range(128, 2049, 128)))
_WAYS = (H2M2, ORACLE)
_SUBLAYERS = {"attention": GREEN, "qkv": ORANGE, "fc": BLUE}


def make(ground: Ground) -> Made:
    """The mapping of H2M2, and the best one, at every length."""
    import pandas as pd

    rows = []
    for way in _WAYS:
        for length in _CASE.lengths:
            held = plan_of(way, GPT3.model, (GPT3.batch, length)).hbm_bytes
            each = {f"{sublayer}_gb": held[sublayer] / GB for sublayer in _SUBLAYERS}
            rows.append({"way": way.words, "length": length, **each, "hbm_gb": sum(each.values())})
    frame = pd.DataFrame(rows)
    obtained = how(lengths_text(_CASE))
    return Made(frame, _claims(frame, obtained), f"{sentence(obtained)}.")


def capacity_gb() -> float:
    """The board's HBM."""
    return original().hbm.capacity_bytes / GB


def _claims(frame: pd.DataFrame, obtained: str) -> tuple[Claim, ...]:
    """What section 5.2.2 reads from the figure."""
    ours = frame[frame["way"] == H2M2.words].set_index("length")
    used = 100 * ours["hbm_gb"] / capacity_gb()
    longer = "in HBM as requests get longer"
    said = (
        ("HBM in use", "nearly fully utilized", f"{used.min():.1f} to {used.max():.1f} %", ""),
        (f"attention {longer}", "consumes a larger portion", _course(ours["attention_gb"]), ""),
        (f"fc {longer}", "the opposite trend", _course(ours["fc_gb"]), ""),
        (f"qkv {longer}", "consistently occupies a moderate amount", _course(ours["qkv_gb"]), _of_qkv(frame)),
    )
    return tuple(
        Claim(what, "section 5.2.2", f'"{theirs}"', mine, obtained, remark=remark)
        for what, theirs, mine, remark in said
    )


def _course(held_gb: pd.Series[float]) -> str:
    """From the shortest requests to the longest, and whether always in one direction."""
    first, last = held_gb.iloc[0], held_gb.iloc[-1]
    steps = held_gb.diff().dropna()
    straight = (steps >= 0).all() or (steps <= 0).all()
    return f"from {first:.1f} to {last:.1f} GB" + (", in one direction" if straight else "")


def _of_qkv(frame: pd.DataFrame) -> str:
    tables = frame.pivot_table(index="length", columns="way", values="qkv_gb")
    ours, best = tables[H2M2.words], tables[ORACLE.words]
    gone = int(ours.index[ours < ours.max() / 10].min())
    return (
        f"From {gone} tokens on next to nothing of it is left: Algorithm 1 first gives attention what "
        "balances the two sides, which with long requests is all of HBM. The best mapping has "
        f"{best.min():.1f} to {best.max():.1f} GB of qkv there, fc beside it, and most of attention in LPDDR."
    )


def draw(made: Made) -> Figure:
    """Stacked bars of what H2M2 has in HBM, and of what the best mapping would."""
    figure, axes = sheet(1, 2, width=PAGE, height=2.7, sharey=True)
    for each, way in zip(axes, _WAYS, strict=True):
        _stacked(each, made.frame[made.frame["way"] == way.words])
        each.set_title(way.words)
    axes[0].set_ylabel("GB in HBM")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
    foot(figure, made.how)
    return figure


def _stacked(axes: Axes, frame: pd.DataFrame) -> None:
    places, bottom = range(len(frame)), frame["hbm_gb"] * 0
    for sublayer, colour in _SUBLAYERS.items():
        held = frame[f"{sublayer}_gb"]
        axes.bar(places, held, 0.8, bottom, color=colour, label=sublayer, linewidth=0)
        bottom = bottom + held
    axes.plot(places, frame["hbm_gb"], "o-", color=INK, markersize=2, lw=0.8, label="all in HBM")
    axes.axhline(capacity_gb(), color=PUBLISHED, lw=1, ls=":", label=f"HBM, {capacity_gb():.0f} GB")
    every = range(3, len(frame), 4)
    axes.set_xticks(list(every), [str(frame["length"].iloc[place]) for place in every])
    axes.set(xlabel="length of the requests, tokens", ylim=(0, 1.08 * capacity_gb()))
    axes.grid(visible=False, axis="x")
