"""What the averages of H2M2's models owe to what its paper leaves open: each assumption varied alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from laminabench.catalog.find_model import model
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.ground import (
    CASES,
    CHINCHILLA,
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
    mean_speed_up_assuming,
    original,
)
from laminabench.figures.papers.h2m2.one_model import PUBLISHED_OF
from laminabench.figures.style import BLUE, INK, PAGE, PUBLISHED, foot, sentence, sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Averages of H2M2's models if one assumption were another"


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


def make(ground: Ground) -> Made:
    """Every model's averages with the defaults, and with one assumption made differently at a time."""
    import pandas as pd

    rows = (row for case in CASES for other in (DEFAULT, *OTHERS) for row in _rows(case, other))
    frame = pd.DataFrame(rows)
    obtained = how(lengths_text(*CASES), also=(OF_TRANSLATION, OF_GQA, OF_HIERARCHICAL))
    claims = tuple(_claim(case, frame[frame["model"] == case.model], obtained) for case in CASES)
    alone = "One is varied at a time, for the baseline too; which lengths the others are is in the data"
    return Made(frame, claims, f"{sentence(obtained)}. {alone}.")


def _rows(case: Case, other: Other) -> Iterator[dict[str, object]]:
    """A model's measures; none where query heads have no KV in common to read once."""
    if other.words == _ONCE and model(case.model).group == 1:
        return
    board = replace(original(), **other.board)
    mine = replace(case, lengths=other.lengths.get(case.model, case.lengths))
    ways = (H2M2, ORACLE, HIERARCHICAL)
    h2m2, oracle, hierarchical = (mean_speed_up_assuming(way, mine, board) for way in ways)
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
    return Claim(
        f"H2M2 over LPDDR-only, {case.words}, each assumption varied alone",
        "section 5.2",
        f"{PUBLISHED_OF[case.model].h2m2} times",
        f"{times.min():.2f} to {times.max():.2f} times",
        obtained,
        remark=f"{default:.2f} times as assumed; most differs: {(times - default).abs().idxmax()}.",
    )


def draw(made: Made) -> Figure:
    """Models beside each other, measures below each other: a line for each assumption, from the default."""
    figure, axes = sheet(len(_MEASURES), len(CASES), width=PAGE, height=6.6, sharey=True)
    for row, measure in zip(axes, _MEASURES, strict=True):
        for each, case in zip(row, CASES, strict=True):
            mine = made.frame[(made.frame["model"] == case.model) & (made.frame["measure"] == measure)]
            _panel(each, mine)
            each.set_xlabel(_MEASURES[measure])
    for each, case in zip(axes[0], CASES, strict=True):
        each.set_title(case.words)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    foot(figure, made.how)
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
