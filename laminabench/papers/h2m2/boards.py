"""The shares of H2M2's averages that are due to parts of its board (figure 17), and to open assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypedDict

import pandas as pd

from laminabench.catalog.find_model import model
from laminabench.papers.context import Context
from laminabench.papers.entries import entry_of
from laminabench.papers.h2m2.one_model import FIGURES
from laminabench.papers.h2m2.speeds import (
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
    loaded_otherwise,
    mean_speed_up_assuming,
    mean_speed_up_at,
    original,
    points_of,
    speed_ups,
    under_the_other_load,
)
from laminabench.papers.paper import Result
from laminabench.systems.modelled.h2m2.boards import board

ORIGINAL = "h2m2"
# Table 4's boards by the part of the board that is another.
PARTS = {
    "HBM capacity": ("hbmcap-less", "hbmcap-more"),
    "HBM bandwidth": ("hbmbw-less", "hbmbw-more"),
    "LPDDR bandwidth": ("lpddrbw-less", "lpddrbw-more"),
    "HBM chips": ("hbmchip-more",),
    "LPDDR chips": ("lpddrchip-more",),
}


def fig17(context: Context) -> Result:
    """Compute every board at every length, over the LPDDR of the original one."""
    boards = [name for some in PARTS.values() for name in some]
    frame = pd.concat(
        [
            speed_ups((H2M2, ORACLE), GPT3.model, points_of(GPT3), board(name)).assign(board=name)
            for name in (ORIGINAL, *boards)
        ],
        ignore_index=True,
    )
    changed = changes(frame)
    values = {
        "source": how(lengths_text(GPT3), also=(OF_TRANSLATION,)),
        "other": _loaded_otherwise(),
        "order": ", ".join(order(changed)),
        "changed": {
            part: ", ".join(f"{changed[H2M2.words][name]:+.1f} % ({name})" for name in names)
            for part, names in PARTS.items()
        },
        "best": changed[ORACLE.words].to_dict(),
    }
    averages = changed.loc[boards].reset_index().melt("board", var_name="way", value_name="percent")
    return Result(frame, values, {"changes": averages})


def _loaded_otherwise() -> str:
    """Return what the largest change, of HBM's capacity, would be."""
    points, first = points_of(GPT3), loaded_otherwise(original())
    usual = mean_speed_up_at(H2M2, GPT3.model, points, first)
    others = {
        name: 100
        * (mean_speed_up_at(H2M2, GPT3.model, points, loaded_otherwise(board(name)), first) / usual - 1)
        for name in PARTS["HBM capacity"]
    }
    return under_the_other_load(others, "%")


def changes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return by board, for each way, how many per cent the average differs from the original board's."""
    averages = frame.pivot_table(index="board", columns="way", values="speed_up")
    return 100 * (averages / averages.loc[ORIGINAL] - 1).drop(index=ORIGINAL)


def order(changed: pd.DataFrame) -> list[str]:
    """Return table 4's parts by the largest change that one of their boards makes to H2M2, largest first."""
    of_h2m2 = changed[H2M2.words].abs()
    return sorted(PARTS, key=lambda part: of_h2m2[list(PARTS[part])].max(), reverse=True)


class BoardChanges(TypedDict, total=False):
    """Fields of a board that an assumption changes."""

    launch_s: float
    tlb_misses_at_once: int
    dram_efficiency: float
    weight_load: str
    reread_kv: bool
    hierarchical_overlap: float


@dataclass(frozen=True, slots=True)
class Other:
    """An assumption made differently."""

    words: str
    board: BoardChanges = field(default_factory=BoardChanges)
    lengths: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by model


DEFAULT = Other("as assumed")
_ONCE = "KV read once for a group"
_BEHIND: BoardChanges = {"weight_load": "behind"}
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


_MEASURES = {
    "h2m2": "H2M2 over LPDDR-only",
    "of_oracle": "H2M2 over Oracle",
    "hierarchical": "Hierarchical over LPDDR-only",
}


def sensitivity(context: Context) -> Result:
    """Compute every model's averages with the defaults, and with one assumption at a time made otherwise."""
    frame = pd.DataFrame(
        [row for case in CASES for other in (DEFAULT, *OTHERS) for row in _rows(case, other)]
    )
    times = {
        str(name): rows.set_index("assumed")["times"]
        for name, rows in frame[frame["measure"] == "h2m2"].groupby("model")
    }
    values = {
        "source": how(lengths_text(*CASES), also=(OF_TRANSLATION, OF_GQA, OF_HIERARCHICAL)),
        "measures": _MEASURES,
        "titles": {
            measure: {case.model: case.words if measure == "h2m2" else "" for case in CASES}
            for measure in _MEASURES
        },
        "times": {name: (some.min(), some.max()) for name, some in times.items()},
        "default": {name: some[DEFAULT.words] for name, some in times.items()},
        "most": {name: (some - some[DEFAULT.words]).abs().idxmax() for name, some in times.items()},
    }
    return Result(frame, values, {"lines": _lines(frame)})


def _rows(case: Case, other: Other) -> Iterator[dict[str, object]]:
    """Yield a model's measures; none where query heads have no KV in common to read once."""
    if other.words == _ONCE and model(case.model).group == 1:
        return
    assumed = replace(original(), **other.board)
    varied = replace(case, lengths=other.lengths.get(case.model, case.lengths))
    ways = (H2M2, ORACLE, HIERARCHICAL)
    h2m2, oracle, hierarchical = (mean_speed_up_assuming(way, varied, assumed) for way in ways)
    stated = entry_of(FIGURES[case.model]).published
    for measure, value, published in (
        ("h2m2", h2m2, stated["H2M2"]),
        ("of_oracle", h2m2 / oracle, stated["of_oracle"]),
        ("hierarchical", hierarchical, stated["Hierarchical"]),
    ):
        yield {
            "model": case.model,
            "assumed": other.words,
            "lengths": " ".join(map(str, varied.lengths)),
            "measure": measure,
            "times": value,
            "published": published,
        }


def _lines(frame: pd.DataFrame) -> pd.DataFrame:
    """Return for each assumption a line from the default to it, at its place."""
    keys = ["model", "measure"]
    usual = frame[frame["assumed"] == DEFAULT.words].set_index(keys)["times"].rename("default")
    places = {other.words: place for place, other in enumerate(OTHERS)}
    varied = frame[frame["assumed"] != DEFAULT.words].join(usual, on=keys)
    varied["at"] = varied["assumed"].map(places)
    return pd.concat(
        [varied.assign(x=varied["default"], end=False), varied.assign(x=varied["times"], end=True)]
    )
