"""H2M2 Figure 19: memory's energy for a token of GPT3-175B, on the board and with eight HBM devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from laminabench.catalog.find_model import model
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.bars import DOTS, bars, legend_entries, point_names
from laminabench.figures.papers.h2m2.ground import (
    COLOURS,
    EIGHT_HBM,
    GPT3,
    H2M2,
    LPDDR_ONLY,
    OF_EIGHT_HBM,
    OF_ENERGY,
    OF_TRANSLATION,
    how,
    lengths_text,
    original,
    plan_of,
    points_of,
)
from laminabench.figures.style import PAGE, foot, sentence, sheet
from laminabench.sim.h2m2 import Plan, footprint

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Memory energy for a token of GPT3-175B over LPDDR-only, batch 32"
_PUBLISHED = {H2M2.words: 0.76, EIGHT_HBM.words: 1.31}
_WHERE = "section 5.5"
BUSY, ALWAYS, BYTES = "while it is busy", "all the time", "by the byte"


class Use(NamedTuple):
    """What an iteration takes of LPDDR and of HBM: device-seconds, or bytes."""

    lpddr: float
    hbm: float


def make(ground: Ground) -> Made:
    """Every way to count, each with HBM's part fitted to what the paper says of eight devices."""
    import pandas as pd

    frames = [_frame(count) for count in _COUNTS]
    frame = pd.concat(frames, ignore_index=True)
    obtained = how(lengths_text(GPT3), also=(OF_TRANSLATION, OF_EIGHT_HBM, OF_ENERGY))
    words = "Energy is what the memories take while they are busy, but on the right"
    return Made(frame, _claims(frame, obtained), f"{sentence(obtained)}. {words}.")


def _frame(count: str) -> pd.DataFrame:
    """Energy of H2M2 and of eight devices over that of LPDDR alone, at every length.

    The board's ratio of powers is for memories that take power while they are busy. Where energy is counted
    otherwise, HBM's part is fitted anew to the same average.
    """
    import pandas as pd

    rows = []
    for point in points_of(GPT3):
        uses = _COUNTS[count](point)
        alone = uses[LPDDR_ONLY.words].lpddr
        for way in (H2M2.words, EIGHT_HBM.words):
            use = uses[way]
            where = {"counted": count, "way": way, "length": point[1]}
            rows.append({**where, "lpddr": use.lpddr / alone, "hbm": use.hbm / alone})
    frame = pd.DataFrame(rows)
    ratio = original().memory_power_ratio
    if count != BUSY:
        ratio = _PUBLISHED[EIGHT_HBM.words] / frame[frame["way"] == EIGHT_HBM.words]["hbm"].mean()
    return frame.assign(hbm_over_lpddr=ratio, energy=frame["lpddr"] + ratio * frame["hbm"])


def _plans(point: tuple[int, int]) -> tuple[Plan, Plan, Plan]:
    alone, board, eight = (plan_of(way, GPT3.model, point) for way in (LPDDR_ONLY, H2M2, EIGHT_HBM))
    return alone, board, eight


def _devices() -> int:
    return original().hbm_devices


def _busy(point: tuple[int, int]) -> dict[str, Use]:
    """Each side as long as it computes or reads; of eight devices all, as each has a part of everything."""
    alone, board, eight = _plans(point)
    return {
        LPDDR_ONLY.words: Use(alone.lpddr_busy_s, 0.0),
        H2M2.words: Use(board.lpddr_busy_s, board.hbm_busy_s),
        EIGHT_HBM.words: Use(0.0, _devices() * eight.iteration_s),
    }


def _always(point: tuple[int, int]) -> dict[str, Use]:
    """Everything that there is as long as an iteration takes."""
    alone, board, eight = _plans(point)
    return {
        LPDDR_ONLY.words: Use(alone.iteration_s, 0.0),
        H2M2.words: Use(board.iteration_s, board.iteration_s),
        EIGHT_HBM.words: Use(0.0, _devices() * eight.iteration_s),
    }


def _bytes(point: tuple[int, int]) -> dict[str, Use]:
    """Every byte of weights and KV is read once an iteration, from where it is."""
    batch, length = point
    whole = sum(footprint(model(GPT3.model), batch * length).values())
    on_hbm = sum(plan_of(H2M2, GPT3.model, point).hbm_bytes.values())
    return {
        LPDDR_ONLY.words: Use(whole, 0.0),
        H2M2.words: Use(whole - on_hbm, on_hbm),
        EIGHT_HBM.words: Use(0.0, whole),
    }


_COUNTS: Mapping[str, Callable[[tuple[int, int]], dict[str, Use]]] = {
    BUSY: _busy,
    ALWAYS: _always,
    BYTES: _bytes,
}


def _claims(frame: pd.DataFrame, obtained: str) -> tuple[Claim, ...]:
    found = frame.groupby(["counted", "way"])["energy"].mean()
    others = (
        f"Counted {ALWAYS} it would be {found[ALWAYS, H2M2.words]:.2f} times, {BYTES} "
        f"{found[BYTES, H2M2.words]:.2f}, each with HBM's part fitted to 8-HBM's 1.31: of the three only the "
        "first gives both of the paper's averages."
    )
    board = original()
    ratio = board.memory_power_ratio
    by_byte = ratio * board.lpddr.bandwidth_bytes_per_s / board.hbm.bandwidth_bytes_per_s
    remarks = {
        H2M2.words: others,
        EIGHT_HBM.words: f"The power of an HBM device, {ratio:g} of the LPDDR memory's, is fitted to the "
        "published averages of energy and time together: the paper has it from another, not printed. "
        f"At full bandwidth that is {by_byte:.2f} of LPDDR's energy for a byte.",
    }
    return tuple(
        Claim(
            f"memory energy for a token, {way} over LPDDR-only, average",
            _WHERE,
            published,
            float(found[BUSY, way]),
            obtained,
            "times",
            remark=remarks[way],
            fitted=way == EIGHT_HBM.words,
        )
        for way, published in _PUBLISHED.items()
    )


def draw(made: Made) -> Figure:
    """Bars by length and the averages, and beside them the averages of the other ways to count."""
    figure, (left, right) = sheet(1, 2, width=PAGE, height=2.7, width_ratios=(2.4, 1), sharey=True)
    busy = made.frame[made.frame["counted"] == BUSY]
    names = point_names(busy.assign(batch=GPT3.batch), batches=False)
    bars(left, busy, names, inches=0.68 * PAGE, column="energy", published=_PUBLISHED)
    left.set(xlabel="length of the requests, tokens", ylabel="energy over LPDDR-only")
    _counted(right, made.frame)
    figure.legend(*legend_entries(left), loc="outside upper left", ncols=4)
    foot(figure, made.how)
    return figure


def _counted(axes: Axes, frame: pd.DataFrame) -> None:
    """H2M2's average, however energy is counted; 8-HBM's is fitted in each."""
    averages = frame[frame["way"] == H2M2.words].groupby("counted", sort=False)["energy"].mean()
    places = range(len(averages))
    drawn = axes.bar(places, averages, 0.6, color=COLOURS[H2M2.words], linewidth=0)
    axes.bar_label(drawn, fmt="%.2f", fontsize=6, padding=2)
    axes.axhline(_PUBLISHED[H2M2.words], **DOTS)
    axes.set_xticks(places, [count.replace(" ", "\n", 1) for count in averages.index])
    axes.set_xlabel("H2M2's average, counted")
    axes.grid(visible=False, axis="x")
