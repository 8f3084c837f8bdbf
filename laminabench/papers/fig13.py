"""Figure 13 of the Lamina paper, of this machine: round trips and bandwidth over the size of a message."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laminabench.bench.fhbn.results import CAVEATS, SHARE_FROM, read, size_text
from laminabench.render.static.drawn import drawn
from laminabench.render.style import Looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinguishable without seeing red or green (after Okabe and Ito), and by their marks.
_LOOKS = {
    "shm": ("#0072b2", "o"),
    "verbs": ("#cc79a7", "D"),
    "mlx5": ("#56b4e9", "v"),
    "softnic": ("#e69f00", "x"),
    "gloo": ("#d55e00", "s"),
    "nccl": ("#009e73", "^"),
}
_GREY = "#777777"
# Section 6.3 of https://arxiv.org/abs/2405.01814, between GPUs of two machines over 400 Gb/s RoCE. They stand
# for themselves: nothing here was measured on such a machine. NCCL's share is its 35.5 of 50 GB/s.
PUBLISHED_RTT_US = {"FHBN": 33.0, "NCCL": 66.6}
PUBLISHED_SHARE = {"FHBN": 0.914, "NCCL": 0.71}
_NOTE = (
    "Right: the receiver has the message, and has not read it. "
    "A copy is between private buffers, by memcpy or as a channel copies.\n"
    "Grey, dotted: published values of another system on other hardware (GPUs of two machines, "
    "400 Gb/s RoCE): round trips of small\n"
    "messages, and the peak as a share of the line rate, which is another measure than a share of a copy."
)

__all__ = ["draw", "picture", "read"]


def draw(result: Mapping[str, Any], target: Path) -> None:
    """Draw the result of `bench fhbn`, or of `read`, into `target`, in the format of its suffix."""
    drawn(lambda: picture(result), target)


def picture(result: Mapping[str, Any]) -> Figure:
    """Return the figure, not yet written to a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.8), facecolor="white")
    trips, shares = figure.subplots(1, 2)
    for engine in result["engines"]:
        rows = [row for row in result["rows"] if row["engine"] == engine]
        sizes = [row["bytes"] for row in rows]
        colour, mark = _LOOKS[engine]
        label = f"{engine} ({CAVEATS[engine]})" if engine in CAVEATS else engine
        looks: Looks = {"color": colour, "marker": mark, "markersize": 4, "lw": 1.6, "label": label}
        trips.plot(sizes, [row["rtt_us_p50"] for row in rows], **looks)
        trips.fill_between(
            sizes,
            [row["rtt_us_p10"] for row in rows],
            [row["rtt_us_p99"] for row in rows],
            color=colour,
            alpha=0.15,
            lw=0,
        )
        shown = [row for row in rows if row["bytes"] >= SHARE_FROM and row["share_of_limit"] is not None]
        if shown:
            shares.plot([row["bytes"] for row in shown], [row["share_of_limit"] for row in shown], **looks)
    _limits(trips, shares, result["limits"])
    _published(trips, PUBLISHED_RTT_US, "published: {name}, {value:.1f} us")
    _published(shares, PUBLISHED_SHARE, "published: {name}, {value:.1%} of line rate")
    trips.set(title="Round trip: median, and p10 to p99", ylabel="us", yscale="log")
    shares.set(title="Bandwidth, as a share of the fastest copy", ylabel="share", ylim=(0, None))
    large = [size for size in result["sizes"] if size >= SHARE_FROM]
    for axes, sizes, legend in (
        (trips, result["sizes"], "upper left"),
        (shares, large or [SHARE_FROM], "center right"),
    ):
        _by_size(axes, sizes)
        axes.legend(fontsize=8, frameon=False, loc=legend)
    figure.text(0.01, 0.015, _NOTE, fontsize=7, color=_GREY)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    return figure


def _limits(trips: Axes, shares: Axes, limits: Mapping[str, Any]) -> None:
    line = limits["cache_line_round_trip_us"]
    if line is not None:
        trips.axhline(line, color="black", lw=0.9, ls="--", label="a cache line there and back")
    shares.axhline(1, color="black", lw=0.9, ls="--", label="the fastest copy of as many bytes")


def _published(axes: Axes, values: Mapping[str, float], words: str) -> None:
    for name, value in values.items():
        axes.axhline(value, color=_GREY, lw=0.9, ls=":")
        axes.annotate(
            words.format(name=name, value=value),
            (0.99, value),  # where curves of round trips are far above
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=7,
            color=_GREY,
        )


def _by_size(axes: Axes, sizes: list[int]) -> None:
    # Few enough that they do not touch.
    step = max(1, -(-len(sizes) // 6))
    shown = sizes[::step]
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [size_text(size) for size in shown], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("message")
    axes.grid(color="#e5e5e5", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
