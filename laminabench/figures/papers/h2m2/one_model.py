"""Figures 12, 13 and 15 are one figure of three models: H2M2, Hierarchical and Oracle over LPDDR alone.

Figure 14 is what is in HBM meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from laminabench.catalog.hardware import GB
from laminabench.figures.claims import Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.bars import bars_of_lengths, legend_entries
from laminabench.figures.papers.h2m2.ground import (
    BOARD,
    CHINCHILLA,
    COLOURS,
    GPT3,
    H2M2,
    HIERARCHICAL,
    LLAMA,
    OF_GQA,
    OF_HIERARCHICAL,
    OF_TRANSLATION,
    ORACLE,
    Case,
    how,
    lengths_text,
    loaded_otherwise,
    mean_speed_up_assuming,
    means,
    original,
    other_speed_ups,
    plan_of,
    points_of,
    speed_up,
    speed_ups,
    under_the_other_load,
)
from laminabench.figures.papers.spans import panels
from laminabench.figures.style import BLUE, GREEN, INK, ORANGE, PAGE, PUBLISHED, sentence, sheet
from laminabench.systems.modelled.h2m2.boards import Board

WAYS = (HIERARCHICAL, H2M2, ORACLE)
# Of migration and computing: nothing at once, or all that can be.
OVERLAPS = {"lowest": 0.0, "highest": 1.0}
ALSO = (OF_TRANSLATION, OF_HIERARCHICAL)
STEP = 32  # tokens from length to length: the rows of an MV unit
LEADS = "lengths at which Hierarchical outperforms H2M2"
SPAN = "Lines through bars span Hierarchical's overlaps from 0 to 1."


@dataclass(frozen=True, slots=True)
class Published:
    """What section 5.2 states of a model: averages over LPDDR alone, and H2M2's over Oracle's."""

    where: str
    hierarchical: float
    h2m2: float
    of_oracle: float
    oracle: float | None = None


PUBLISHED_OF = {
    GPT3.model: Published("section 5.2.1", hierarchical=1.07, h2m2=1.46, of_oracle=0.97),
    CHINCHILLA.model: Published("section 5.2.1", hierarchical=1.33, h2m2=1.55, of_oracle=0.95),
    LLAMA.model: Published("section 5.2.3", hierarchical=2.75, h2m2=2.94, of_oracle=0.98, oracle=3.00),
}


def fig12(ground: Ground) -> Made:
    """GPT3-175B, with the average over Hierarchical's that section 7 states of it."""
    frame, obtained = frame_of(GPT3), how(lengths_text(GPT3), also=ALSO)
    found = means(averaged(frame))
    ratio = found[H2M2.words] / found[HIERARCHICAL.words]
    says = Section("section 7", obtained, "performance", BOARD)
    # Fitted as both averages are.
    over = says("H2M2's average over Hierarchical's", 1.36, ratio, "times", fitted=True)
    return _made(GPT3, frame, [*claims_of(GPT3, frame, obtained), over], f"{sentence(obtained)}. {SPAN}")


def fig13(ground: Ground) -> Made:
    """Chinchilla-70B, and up to which length Hierarchical leads."""
    frame, obtained = frame_of(CHINCHILLA), how(lengths_text(CHINCHILLA), also=ALSO)
    leads = hierarchical_leads(frame)
    says = Section("section 5.2.1", f"{obtained}; looked for in steps of {STEP}", "performance", BOARD)
    until = says(
        LEADS,
        512,
        float(leads.index.max()) if len(leads) else 0.0,
        "tokens",
        "at most",
        remark="There the board's HBM holds everything; Hierarchical is the faster by at most "
        f"{leads.max():.1f} %.",
    )
    claims = [*claims_of(CHINCHILLA, frame, obtained), until]
    return _made(CHINCHILLA, frame, claims, f"{sentence(obtained)}. {SPAN}")


def fig15(ground: Ground) -> Made:
    """Llama2-70B, whose query heads share KV, and at which lengths Hierarchical leads."""
    frame, obtained = frame_of(LLAMA), how(lengths_text(LLAMA), also=(*ALSO, OF_GQA))
    leads = hierarchical_leads(frame)
    ours = "none"
    if len(leads):
        ours = f"at {leads.index.min()} to {leads.index.max()} tokens, by up to {leads.max():.1f} %"
    once = mean_speed_up_assuming(H2M2, LLAMA, replace(original(), reread_kv=False))
    read_once = (
        "The paper says that a group shares its KV's storage, not how often that is read. Here every query "
        "head reads it, which is a switch fitted to this number: read once for the group, it would be "
        f"{once:.2f} times."
    )
    first, *others = claims_of(LLAMA, frame, obtained)
    short = Section("section 5.2.3", obtained, "performance", BOARD)(
        LEADS, '"shorter sequence lengths"', ours
    )
    words = f"{sentence(obtained)}. Each query head reads its group's KV from memory. {SPAN}"
    return _made(LLAMA, frame, [replace(first, remark=read_once), *others, short], words)


def _made(case: Case, frame: pd.DataFrame, claims: Sequence[Claim], words: str) -> Made:
    other = other_speed_ups((H2M2, ORACLE), case.model, points_of(case))
    return Made(frame, claims, f"{words} {other}.", partial(_draw_case, PUBLISHED_OF[case.model]))


@cache
def overlapping(overlap: float) -> Board:
    """The board with another share of Hierarchical's migration hidden."""
    return replace(original(), hierarchical_overlap=overlap)


def frame_of(case: Case) -> pd.DataFrame:
    """Every way at the lengths that averages are over, and at those between, which lines are drawn through.

    Of Hierarchical also without any overlap and with all there can be.
    """
    longest = max(case.lengths)
    points = [(case.batch, length) for length in range(STEP, longest + 1, STEP)]
    assert set(points_of(case)) <= set(points)
    frame = speed_ups(WAYS, case.model, points)
    frame["averaged"] = frame["length"].isin(case.lengths)
    hierarchical = frame["way"] == HIERARCHICAL.words
    for column, overlap in OVERLAPS.items():
        board = overlapping(overlap)
        frame.loc[hierarchical, column] = [
            speed_up(HIERARCHICAL, case.model, point, board) for point in points
        ]
    return frame


def averaged(frame: pd.DataFrame) -> pd.DataFrame:
    """Of the lengths that the averages are over."""
    return frame[frame["averaged"]]


def claims_of(case: Case, frame: pd.DataFrame, obtained: str) -> list[Claim]:
    """Averages of the speed-ups at each length, and what H2M2 comes to of the best mapping.

    The averages are what the board's open parameters were fitted to; what greed costs is not.
    """
    published, found = PUBLISHED_OF[case.model], means(averaged(frame))
    low, high = averaged(frame)[list(OVERLAPS)].mean()
    says = Section(published.where, obtained, "performance", BOARD)
    average = f"over LPDDR-only, {case.words}, average"
    also = ", section 5.5, section 7" if case is GPT3 else ""
    h2m2, oracle = found[H2M2.words], found[ORACLE.words]
    claims = [
        says(
            f"H2M2 {average}",
            published.h2m2,
            h2m2,
            "times",
            where=f"{published.where}, abstract, section 1{also}",
            fitted=True,
        ),
        says(
            f"Hierarchical {average}",
            published.hierarchical,
            found[HIERARCHICAL.words],
            "times",
            how=f"{obtained}; one overlap for all three models, fitted to their three averages",
            remark=f"Without overlap it is {low:.2f} times, with all that there can be {high:.2f}.",
            fitted=True,
        ),
        says(f"H2M2's average over Oracle's, {case.words}", published.of_oracle, h2m2 / oracle, "times"),
    ]
    if published.oracle is not None:
        claims.append(says(f"Oracle {average}", published.oracle, oracle, "times", fitted=True))
    return claims


def hierarchical_leads(frame: pd.DataFrame) -> pd.Series[float]:
    """By how many per cent Hierarchical is the faster, at the lengths where it is."""
    table = frame.pivot_table(index="length", columns="way", values="speed_up")
    more: pd.Series[float] = 100 * (table[HIERARCHICAL.words] / table[H2M2.words] - 1)
    return more[more > 0]


def _draw_case(published: Published, frame: pd.DataFrame) -> Figure:
    """Bars for the lengths averaged over, and lines over all of them."""
    figure, (left, right) = sheet(1, 2, width=PAGE, height=2.9, width_ratios=(2.2, 1), sharey=True)
    stated = {HIERARCHICAL.words: published.hierarchical, H2M2.words: published.h2m2}
    if published.oracle is not None:
        stated[ORACLE.words] = published.oracle
    bars_of_lengths(left, averaged(frame), inches=0.65 * PAGE, published=stated)
    for way in WAYS:
        mine = frame[frame["way"] == way.words]
        right.plot(mine["length"], mine["speed_up"], color=COLOURS[way.words])
    right.set(xlabel="length, tokens", xlim=(0, None))
    right.axhline(1, color=PUBLISHED, lw=0.6)
    figure.legend(*legend_entries(left), loc="outside upper left", ncols=5)
    return figure


# Closer together than those of figure 12, so that one sees where a sublayer leaves HBM.
_CLOSE = replace(GPT3, lengths=tuple(range(128, 2049, 128)))
_SUBLAYERS = {"attention": GREEN, "qkv": ORANGE, "fc": BLUE}


def fig14(ground: Ground) -> Made:
    """What is in HBM with the mapping of H2M2, and with the best one, at every length."""
    rows = []
    for way in (H2M2, ORACLE):
        for length in _CLOSE.lengths:
            held = plan_of(way, GPT3.model, (GPT3.batch, length)).hbm_bytes
            each = {f"{sublayer}_gb": held[sublayer] / GB for sublayer in _SUBLAYERS}
            rows.append({"way": way.words, "length": length, **each, "hbm_gb": sum(each.values())})
    frame = pd.DataFrame(rows)
    obtained = how(f"batch {_CLOSE.batch}, lengths assumed: {_CLOSE.lengths[0]} to {_CLOSE.lengths[-1]}")
    board = loaded_otherwise(original())
    others = [
        plan_of(H2M2, GPT3.model, (GPT3.batch, length), board).hbm_bytes["qkv"] / GB
        for length in _CLOSE.lengths
    ]
    other = under_the_other_load({"qkv at most": max(others), "at least": min(others)}, "GB")
    return Made(frame, _of_hbm(frame, obtained), f"{sentence(obtained)}. {other}.", _draw_fig14)


def capacity_gb() -> float:
    """The board's HBM."""
    return original().hbm.capacity_bytes / GB


def _of_hbm(frame: pd.DataFrame, obtained: str) -> list[Claim]:
    """What section 5.2.2 reads from the figure."""
    ours, best = (frame[frame["way"] == way.words].set_index("length") for way in (H2M2, ORACLE))
    used, qkv = 100 * ours["hbm_gb"] / capacity_gb(), ours["qkv_gb"]
    gone = int(qkv.index[qkv < qkv.max() / 10].min())
    of_qkv = (
        f"From {gone} tokens on next to nothing of it is left: Algorithm 1 first gives attention what "
        "balances the two sides, which with long requests is all of HBM. The best mapping has "
        f"{best['qkv_gb'].min():.1f} to {best['qkv_gb'].max():.1f} GB of qkv there, fc beside it, and most "
        "of attention in LPDDR."
    )
    says, longer = Section("section 5.2.2", obtained, "performance", BOARD), "in HBM as requests get longer"
    return [
        says("HBM in use", '"nearly fully utilized"', f"{used.min():.1f} to {used.max():.1f} %"),
        says(f"attention {longer}", '"consumes a larger portion"', _course(ours["attention_gb"])),
        says(f"fc {longer}", '"the opposite trend"', _course(ours["fc_gb"])),
        says(f"qkv {longer}", '"consistently occupies a moderate amount"', _course(qkv), remark=of_qkv),
    ]


def _course(held_gb: pd.Series[float]) -> str:
    """From the shortest requests to the longest, and whether always in one direction."""
    first, last = held_gb.iloc[0], held_gb.iloc[-1]
    steps = held_gb.diff().dropna()
    straight = (steps >= 0).all() or (steps <= 0).all()
    return f"from {first:.1f} to {last:.1f} GB" + (", in one direction" if straight else "")


def _draw_fig14(frame: pd.DataFrame) -> Figure:
    """Stacked bars of what H2M2 has in HBM, and of what the best mapping would."""
    figure, axes = sheet(1, 2, width=PAGE, height=2.7, sharey=True)
    for each, (way,), mine in panels(axes, frame, way=(H2M2.words, ORACLE.words)):
        _stacked(each, mine)
        each.set_title(way)
    axes[0].set_ylabel("GB in HBM")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
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
