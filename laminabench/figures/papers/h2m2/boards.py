"""What H2M2's averages owe to the parts of its board (figure 17), and to what its paper leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from laminabench.catalog.find_model import model
from laminabench.figures.claims import Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.ground import (
    BOARD,
    CASES,
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
    mean_speed_up_at,
    original,
    points_of,
    speed_ups,
    under_the_other_load,
)
from laminabench.figures.papers.h2m2.one_model import PUBLISHED_OF
from laminabench.figures.papers.spans import panels
from laminabench.figures.style import BLUE, INK, PAGE, PUBLISHED, PURPLE, SKY, VERMILION, sentence, sheet
from laminabench.systems.modelled.h2m2.boards import board

ORIGINAL = "h2m2"
# Table 4's boards as the figure's parts show them.
PARTS = {
    "HBM capacity": ("hbmcap-less", "hbmcap-more"),
    "HBM bandwidth": ("hbmbw-less", "hbmbw-more"),
    "LPDDR bandwidth": ("lpddrbw-less", "lpddrbw-more"),
    "HBM chips": ("hbmchip-more",),
    "LPDDR chips": ("lpddrchip-more",),
}
_PANELS = (("HBM capacity",), ("HBM bandwidth",), ("LPDDR bandwidth",), ("HBM chips", "LPDDR chips"))
_WAYS = (H2M2, ORACLE)
_MARKS = {H2M2.words: "o-", ORACLE.words: ":"}
_SAID = {
    "HBM capacity": "highly sensitive",
    "LPDDR bandwidth": "shows some impacts",
    "LPDDR chips": "shows some impacts",
    "HBM bandwidth": "almost negligible",
    "HBM chips": "almost negligible",
}


def fig17(ground: Ground) -> Made:
    """Every board at every length, over the LPDDR of the original one."""
    names = (ORIGINAL, *(name for some in PARTS.values() for name in some))
    frame = pd.concat(
        [speed_ups(_WAYS, GPT3.model, points_of(GPT3), board(name)).assign(board=name) for name in names],
        ignore_index=True,
    )
    obtained = how(lengths_text(GPT3), also=(OF_TRANSLATION,))
    fixed = "The baseline is the original board's LPDDR with two chips, whatever the board"
    words = f"{sentence(obtained)}. {_loaded_otherwise()}. {fixed}."
    return Made(frame, _claims(changes(frame), obtained), words, _draw_fig17)


def _loaded_otherwise() -> str:
    """What the largest change, of HBM's capacity, would be."""
    points, first = points_of(GPT3), loaded_otherwise(original())
    usual = mean_speed_up_at(H2M2, GPT3.model, points, first)
    others = {
        name: 100
        * (mean_speed_up_at(H2M2, GPT3.model, points, loaded_otherwise(board(name)), first) / usual - 1)
        for name in PARTS["HBM capacity"]
    }
    return under_the_other_load(others, "%")


def changes(frame: pd.DataFrame) -> pd.DataFrame:
    """By board, for each way: per cent that the average speed-up differs from the original board's."""
    averages = frame.pivot_table(index="board", columns="way", values="speed_up")
    return 100 * (averages / averages.loc[ORIGINAL] - 1).drop(index=ORIGINAL)


def order(changed: pd.DataFrame) -> list[str]:
    """Table 4's parts by the largest change that one of their boards makes to H2M2, largest first."""
    of_h2m2 = changed[H2M2.words].abs()
    return sorted(PARTS, key=lambda part: of_h2m2[list(PARTS[part])].max(), reverse=True)


def _claims(changed: pd.DataFrame, obtained: str) -> list[Claim]:
    remarks = {
        "LPDDR bandwidth": "With more of it the best mapping gains {lpddrbw-more:.1f} %. The greedy one "
        "leaves the matrix products to the LPDDR side, whose chip loads their weights no faster.",
        "HBM bandwidth": "The best mapping changes by {hbmbw-less:+.1f} % and {hbmbw-more:+.1f} %.",
    }
    best, mine = changed[ORACLE.words].to_dict(), changed[H2M2.words]
    says = Section("section 5.4", obtained, "performance", BOARD)
    return [
        says(
            "parts of the board by what they change, largest first",
            "HBM capacity, then LPDDR bandwidth and chips, the others almost nothing",
            ", ".join(order(changed)),
        ),
        *(
            says(
                f"H2M2's speed-up with other {part}",
                f'"{said}"',
                ", ".join(f"{mine[name]:+.1f} % ({name})" for name in PARTS[part]),
                remark=remarks.get(part, "").format_map(best),
            )
            for part, said in _SAID.items()
        ),
    ]


def _draw_fig17(frame: pd.DataFrame) -> Figure:
    """A panel for each part by length, and below what each board changes on average."""
    figure = Figure(figsize=(PAGE, 4.4), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(1.25, 1))
    above, below = halves
    columns = above.subplots(1, len(_PANELS), sharey=True)
    for each, parts in zip(columns, _PANELS, strict=True):
        _by_length(each, frame, parts)
        each.set_title("chips" if len(parts) > 1 else parts[0])
    columns[0].set_ylabel("speed-up over LPDDR-only")
    above.legend(handles=_legend(), loc="outside upper left", ncols=6)
    _averages(below.subplots(), changes(frame))
    return figure


def _by_length(axes: Axes, frame: pd.DataFrame, parts: tuple[str, ...]) -> None:
    boards = {ORIGINAL: INK} | {name: _colour(name) for part in parts for name in PARTS[part]}
    for (name, way), mine in frame.groupby(["board", "way"]):
        if name in boards:
            axes.plot(mine["length"], mine["speed_up"], _MARKS[way], color=boards[name], markersize=2.5, lw=1)
    axes.set(xlabel="length, tokens", xticks=(512, 1024, 1536, 2048), xlim=(400, 2160))


def _colour(board_name: str) -> str:
    if board_name.endswith("less"):
        return VERMILION
    return PURPLE if board_name.startswith("lpddrchip") else SKY


def _legend() -> list[Any]:
    colours = {
        "original": INK,
        "less": VERMILION,
        "more (chips: at HBM)": SKY,
        "more chips at LPDDR": PURPLE,
    }
    return [
        *(Line2D([], [], color=colour, label=words) for words, colour in colours.items()),
        *(
            Line2D([], [], color=PUBLISHED, ls=_MARKS[way.words].lstrip("o"), label=way.words)
            for way in _WAYS
        ),
    ]


def _averages(axes: Axes, changed: pd.DataFrame) -> None:
    """Bars to both sides of what the original board reaches."""
    names = [name for part in PARTS.values() for name in part]
    for place, way in enumerate(_WAYS):
        values = changed.loc[names, way.words]
        places = [each + 0.4 * (place - 0.5) for each in range(len(names))]
        drawn = axes.bar(places, values, 0.4, color=COLOURS[way.words], label=way.words, linewidth=0)
        axes.bar_label(drawn, fmt="%+.1f", fontsize=6, padding=1, color=INK)
    axes.axhline(0, color=INK, lw=0.6)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("average over the original's, %")
    axes.margins(y=0.12)
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper right", ncols=2)


@dataclass(frozen=True, slots=True)
class Other:
    """What is assumed differently."""

    words: str
    board: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by model


DEFAULT = Other("as assumed")
_ONCE = "KV read once for a group"
_BEHIND = {"weight_load": "behind"}
_SHORTER = {
    GPT3.model: (256, 512, 768, 1024),
    CHINCHILLA.model: (256, 512, 1024, 2048, 4096),
    LLAMA.model: (256, 512, 1024, 2048),
}
_EVEN = {
    GPT3.model: tuple(range(256, 2049, 256)),
    CHINCHILLA.model: (256, 1024, 2048, 3072, 4096),
    LLAMA.model: tuple(range(512, 4097, 512)),
}
OTHERS = (
    Other("DRAM efficiency 0.7", {"dram_efficiency": 0.7}),
    Other("DRAM efficiency 1", {"dram_efficiency": 1.0}),
    Other("weights behind the last tile", _BEHIND),
    Other("both: efficiency 1, behind", {"dram_efficiency": 1.0, **_BEHIND}),
    Other(_ONCE, {"reread_kv": False}),
    Other("one TLB miss at a time", {"tlb_misses_at_once": 1}),
    Other("16 TLB misses at once", {"tlb_misses_at_once": 16}),
    Other("Hierarchical: no overlap", {"hierarchical_overlap": 0.0}),
    Other("Hierarchical: all overlaps", {"hierarchical_overlap": 1.0}),
    Other("launches of 2 us", {"launch_s": 2e-6}),
    Other("shorter lengths", lengths=_SHORTER),
    Other("evenly spaced lengths", lengths=_EVEN),
)
# By the fields of `Published`: what the paper states of each model, section 5.2.
_MEASURES = {
    "h2m2": "H2M2 over LPDDR-only",
    "of_oracle": "H2M2 over Oracle",
    "hierarchical": "Hierarchical over LPDDR-only",
}


def sensitivity(ground: Ground) -> Made:
    """Every model's averages with the defaults, and with one assumption made differently at a time."""
    rows = (row for case in CASES for other in (DEFAULT, *OTHERS) for row in _rows(case, other))
    frame = pd.DataFrame(rows)
    obtained = how(lengths_text(*CASES), also=(OF_TRANSLATION, OF_GQA, OF_HIERARCHICAL))
    claims = [_claim(case, frame[frame["model"] == case.model], obtained) for case in CASES]
    alone = "One is varied at a time, for the baseline too; which lengths the others are is in the data"
    return Made(frame, claims, f"{sentence(obtained)}. {alone}.", _draw_sensitivity)


def _rows(case: Case, other: Other) -> Iterator[dict[str, object]]:
    """A model's measures; none where query heads have no KV in common to read once."""
    if other.words == _ONCE and model(case.model).group == 1:
        return
    assumed = replace(original(), **other.board)
    mine = replace(case, lengths=other.lengths.get(case.model, case.lengths))
    ways = (H2M2, ORACLE, HIERARCHICAL)
    h2m2, oracle, hierarchical = (mean_speed_up_assuming(way, mine, assumed) for way in ways)
    ours = {"h2m2": h2m2, "of_oracle": h2m2 / oracle, "hierarchical": hierarchical}
    for measure, value in ours.items():
        yield {
            "model": case.model,
            "assumed": other.words,
            "lengths": " ".join(map(str, mine.lengths)),
            "measure": measure,
            "times": value,
            "published": getattr(PUBLISHED_OF[case.model], measure),
        }


def _claim(case: Case, frame: pd.DataFrame, obtained: str) -> Claim:
    """Between what the speed-up lies, and which assumption does most to it."""
    times = frame[frame["measure"] == "h2m2"].set_index("assumed")["times"]
    default = times[DEFAULT.words]
    return Section("section 5.2", obtained, "performance", BOARD)(
        f"H2M2 over LPDDR-only, {case.words}, each assumption varied alone",
        f"{PUBLISHED_OF[case.model].h2m2} times",
        f"{times.min():.2f} to {times.max():.2f} times",
        remark=f"{default:.2f} times as assumed; most differs: {(times - default).abs().idxmax()}.",
    )


def _draw_sensitivity(frame: pd.DataFrame) -> Figure:
    """Models beside each other, measures below each other: a line for each assumption, from the default."""
    figure, axes = sheet(len(_MEASURES), len(CASES), width=PAGE, height=6.6, sharey=True)
    models = [case.model for case in CASES]
    for each, (measure, _), mine in panels(axes, frame, measure=_MEASURES, model=models):
        _panel(each, mine)
        each.set_xlabel(_MEASURES[measure])
    for each, case in zip(axes[0], CASES, strict=True):
        each.set_title(case.words)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return figure


def _panel(axes: Axes, frame: pd.DataFrame) -> None:
    times = frame.set_index("assumed")["times"]
    default = times[DEFAULT.words]
    axes.axvline(default, color=INK, lw=0.8, label=DEFAULT.words)
    axes.axvline(frame["published"].iloc[0], color=PUBLISHED, lw=1, ls=":", label="published")
    varied = [(place, times[other.words]) for place, other in enumerate(OTHERS) if other.words in times]
    places, values = zip(*varied, strict=True)
    axes.hlines(places, default, values, color=BLUE, lw=1.2)
    axes.plot(values, places, "o", color=BLUE, markersize=3)
    axes.set_yticks(range(len(OTHERS)), [other.words for other in OTHERS])
    axes.set_ylim(len(OTHERS) - 0.5, -0.5)
