"""The papers' figures and tables by name, and how each becomes files.

Each is one function of a module in `laminabench.figures.papers`: it makes a data frame and the paper's claims
beside ours, and says how the frame is drawn.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.render import style
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Paper(NamedTuple):
    """A paper's figures by name; of each the module of `papers` and the title."""

    name: str
    title: str
    link: str
    figures: Mapping[str, tuple[str, str]]


_V2 = {
    "table1": ("tables", "Specifications of H100, H20 and TPU v6e"),
    "table2": ("tables", "Notation of the performance analysis, with the values of LLaMA3-70B"),
    "table3": ("tables", "Large language models used for evaluation"),
    "table4": ("tables", "Request traces used for evaluation"),
    "table5": ("tables", "Equal-cost hardware configurations"),
    "fig2": ("analysis", "Time and MFU of the non-attention operators of LLaMA3-70B on H100"),
    "fig3": ("analysis", "Time and MBU of the attention operators of LLaMA3-70B"),
    "fig4": ("analysis", "Network bandwidth for LLaMA3-70B with at most 20 % of latency added"),
    "fig10": ("equal_cost", "Lamina against vLLM on hardware of about equal cost"),
    "fig11": ("served", "Throughput and hardware cost of various configurations"),
    "fig12": ("steps", "Token generation latency, in parts"),
    "fig13": ("ping_pong", "Network ping-pong"),
    "fig14": ("steps", "TBT with and without resource utilization overlapping"),
}
_V1 = {
    "v1-table1": ("tables", "Memory and its price, of enterprise- and consumer-grade accelerators"),
    "v1-table3": ("parts", "Least bandwidth between computation and memory devices"),
    "v1-table4": ("tables", "Models of the evaluation"),
    "v1-fig1": (
        "estimate",
        "Estimated throughput per cost over a homogeneous cluster's, best numbers of devices",
    ),
    "v1-fig3": ("parts", "Model FLOPS utilisation of an A100 serving LLaMA-13B, attention excluded"),
    "v1-fig4": ("parts", "Share of LLaMA-13B's time that attention takes on an A100"),
    "v1-fig5": ("parts", "Speed-up of LLaMA-7B by tensor parallelism over RTX 4080, attention excluded"),
    "v1-fig6": ("parts", "Bandwidth utilisation of LLaMA-13B's attention"),
    "v1-fig12": ("served", "Token throughput of LLaMA-13B and LLaMA-33B by batch and context"),
    "v1-fig13": ("served", "Throughput per hardware cost of LLaMA-13B and LLaMA-33B"),
    "v1-fig14": ("network", "Token latency of LLaMA-13B and LLaMA-33B by part"),
    "v1-fig15": ("network", "Networking overhead of LLaMA-13B, one computation and one memory device"),
    "v1-fig16": (
        "network",
        "Communication-attention overlapping, LLaMA-13B on one computation and three memory devices",
    ),
    "v1-fig17": ("served", "Latency and throughput of LLaMA-33B on ShareGPT, by number of memory devices"),
}
_H2M2 = {
    "h2m2-table1": ("tables", "The two memories, and the setup that the text states"),
    "h2m2-table2": ("tables", "Units and latencies of an accelerator chip"),
    "h2m2-table4": ("tables", "Boards of the sensitivity study"),
    "h2m2-fig6": ("granularity", "Speed-up of mapping whole sublayers and of mapping heads, GPT3-175B"),
    "h2m2-fig7": ("granularity", "Speed-up of FlexGen's mapping and of the best, GPT3-175B"),
    "h2m2-fig8": (
        "granularity",
        "Speed-up of keeping one sublayer in HBM and of the best mapping, GPT3-175B",
    ),
    "h2m2-fig12": ("one_model", "Speed-up of GPT3-175B over LPDDR-only memory, batch 32"),
    "h2m2-fig13": ("one_model", "Speed-up of Chinchilla-70B over LPDDR-only memory, batch 64"),
    "h2m2-fig14": ("one_model", "HBM of GPT3-175B by sublayer, batch 32"),
    "h2m2-fig15": ("one_model", "Speed-up of Llama2-70B over LPDDR-only memory, batch 128"),
    "h2m2-table3": (
        "overheads",
        "What address translation and the greedy mapping cost, and what pages waste",
    ),
    "h2m2-fig16": ("dynamic", "Speed-up while requests end at random and are replaced, GPT3-175B"),
    "h2m2-fig17": ("boards", "Speed-up of GPT3-175B on the boards of table 4, batch 32"),
    "h2m2-fig18": ("eight_hbm", "Speed-up of GPT3-175B with H2M2 and with eight HBM devices, batch 32"),
    "h2m2-fig19": ("eight_hbm", "Memory energy for a token of GPT3-175B over LPDDR-only, batch 32"),
    "h2m2-sensitivity": ("boards", "Averages of H2M2's models if one assumption were another"),
    "h2m2-layer": ("layer", "One layer of H2M2's models, replayed block by block beside the closed formulas"),
}
_TODAY = {
    "today-cost": ("cost", "The cheapest tokens of each system for models of today"),
    "today-price": ("cost", "The cheapest tokens of mixtures of experts by H20's price"),
}
V2, V1, H2M2, TODAY = PAPERS = (
    Paper("v2", "Model-attention disaggregation", "https://arxiv.org/abs/2405.01814", _V2),
    Paper(
        "v1",
        "Attention offloading (the same paper's first version)",
        "https://arxiv.org/abs/2405.01814v1",
        _V1,
    ),
    Paper(
        "H2M2",
        "Hardware-based heterogeneous memory management for large language model inference",
        "https://arxiv.org/abs/2504.14893",
        _H2M2,
    ),
    Paper("today", "No paper: models of today", "https://github.com/laminabench/laminabench", _TODAY),
)
TITLES = {name: title for paper in PAPERS for name, (_, title) in paper.figures.items()}
SUFFIXES = (".csv", ".svg", ".png")


@dataclass(frozen=True, slots=True)
class Made:
    """What a figure shows, before it is drawn."""

    frame: pd.DataFrame
    claims: Sequence[Claim]
    how: str  # one line under the picture: modelled with what, computed from what, measured where
    draw: Callable[[pd.DataFrame], Figure] = style.table_picture

    def picture(self) -> Figure:
        """With the line under it; called inside `style.look`."""
        figure = self.draw(self.frame)
        style.foot(figure, self.how)
        return figure


@dataclass(frozen=True, slots=True)
class Written:
    """One figure in the output folder."""

    name: str
    how: str
    claims: Sequence[Claim]
    rows: int

    @property
    def title(self) -> str:
        return TITLES[self.name]


def find(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names asked for, in the papers' order; all, for `all` or nothing."""
    from laminabench.util.suggest import nearest

    if not names or "all" in names:
        return tuple(TITLES)
    for name in names:
        if name not in TITLES:
            raise UserError("figure-unknown", f"no figure is called {name!r}; {nearest(name, TITLES)}")
    return tuple(name for name in TITLES if name in names)


def make(name: str, ground: Ground) -> Made:
    """The figure of that name, of which `fig12` of its paper's module is what makes h2m2-fig12."""
    paper = next(each for each in PAPERS if name in each.figures)
    module, _ = paper.figures[name]
    found = importlib.import_module(f"laminabench.figures.papers.{paper.name.lower()}.{module}")
    return cast("Made", getattr(found, name.rpartition("-")[2])(ground))


def write(ground: Ground, asked: tuple[str, Path]) -> Written:
    """Make and draw one figure, and write its three files into a folder: each is whole or not there."""
    name, folder = asked
    made = make(name, ground)
    with style.look():
        picture = made.picture()
        for suffix in SUFFIXES:
            with replacing(folder / f"{name}{suffix}") as temporary:
                if suffix == ".csv":
                    made.frame.to_csv(temporary, index=False, lineterminator="\n", float_format="%.6g")
                else:
                    style.save(picture, temporary)
    return Written(name, made.how, made.claims, len(made.frame))
