"""H2M2 Figure 17: what changing one part of the board does to GPT3-175B."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laminabench.catalog.boards import board
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.ground import (
    COLOURS,
    GPT3,
    H2M2,
    OF_TRANSLATION,
    ORACLE,
    how,
    lengths_text,
    points_of,
    speed_ups,
)
from laminabench.figures.style import INK, PAGE, PUBLISHED, PURPLE, SKY, VERMILION, foot, sentence

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Speed-up of GPT3-175B on the boards of table 4, batch 32"
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


def make(ground: Ground) -> Made:
    """Every board at every length, over the LPDDR of the original one."""
    import pandas as pd

    names = (ORIGINAL, *(name for some in PARTS.values() for name in some))
    frame = pd.concat(
        [speed_ups(_WAYS, GPT3.model, points_of(GPT3), board(name)).assign(board=name) for name in names],
        ignore_index=True,
    )
    obtained = how(lengths_text(GPT3), also=(OF_TRANSLATION,))
    fixed = "The baseline is the original board's LPDDR with two chips, whatever the board"
    return Made(frame, _claims(changes(frame), obtained), f"{sentence(obtained)}. {fixed}.")


def changes(frame: pd.DataFrame) -> pd.DataFrame:
    """By board, for each way: per cent that the average speed-up differs from the original board's."""
    averages = frame.pivot_table(index="board", columns="way", values="speed_up")
    return 100 * (averages / averages.loc[ORIGINAL] - 1).drop(index=ORIGINAL)


def order(changed: pd.DataFrame) -> list[str]:
    """Table 4's parts by the largest change that one of their boards makes to H2M2, largest first."""
    of_h2m2 = changed[H2M2.words].abs()
    return sorted(PARTS, key=lambda part: of_h2m2[list(PARTS[part])].max(), reverse=True)


def _claims(changed: pd.DataFrame, obtained: str) -> tuple[Claim, ...]:
    remarks = {
        "LPDDR bandwidth": "With more of it the best mapping gains {lpddrbw-more:.1f} %. The greedy one "
        "leaves the matrix products to the LPDDR side, whose chip loads their weights no faster.",
        "HBM bandwidth": "The best mapping changes by {hbmbw-less:+.1f} % and {hbmbw-more:+.1f} %.",
    }
    best = changed[ORACLE.words].to_dict()
    first = Claim(
        "parts of the board by what they change, largest first",
        "section 5.4",
        "HBM capacity, then LPDDR bandwidth and chips, the others almost nothing",
        ", ".join(order(changed)),
        obtained,
    )
    others = (
        Claim(
            f"H2M2's speed-up with other {part}",
            "section 5.4",
            f'"{_SAID[part]}"',
            ", ".join(f"{changed.loc[name, H2M2.words]:+.1f} % ({name})" for name in PARTS[part]),
            obtained,
            remark=remarks.get(part, "").format_map(best),
        )
        for part in _SAID
    )
    return (first, *others)


def draw(made: Made) -> Figure:
    """A panel for each part by length, and below what each board changes on average."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE, 4.4), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(1.25, 1))
    above, below = halves
    panels = above.subplots(1, len(_PANELS), sharey=True)
    for each, parts in zip(panels, _PANELS, strict=True):
        _by_length(each, made.frame, parts)
        each.set_title("chips" if len(parts) > 1 else parts[0])
    panels[0].set_ylabel("speed-up over LPDDR-only")
    above.legend(handles=_legend(), loc="outside upper left", ncols=6)
    _averages(below.subplots(), changes(made.frame))
    foot(figure, made.how)
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
    from matplotlib.lines import Line2D

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
