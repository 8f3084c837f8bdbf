"""A picture of a trace: how long, how correlated, how often."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laminabench.traces.describe import reused_tokens
from laminabench.traces.formats.wording import printable
from laminabench.traces.table import Trace
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")
# A scatter of more points is a blot, and slow.
MOST_POINTS = 20_000


def check_suffix(target: Path) -> None:
    """Raise a UserError for an unsupported kind of picture, before anything is computed for it."""
    if target.suffix.lower() not in SUFFIXES:
        raise UserError(
            "plot-bad-suffix", f"cannot draw {target}: give it one of the suffixes {', '.join(SUFFIXES)}"
        )


def plot_trace(trace: Trace, target: Path) -> None:
    """Plot lengths as distributions, prompt against output, and arrivals over time, in one picture."""
    check_suffix(target)
    import matplotlib as mpl

    mpl.use("Agg")
    import seaborn
    from matplotlib import pyplot

    with seaborn.axes_style("whitegrid"), seaborn.color_palette("colorblind"):
        figure, ((lengths, scatter), (arrivals, gaps)) = pyplot.subplots(
            2, 2, figsize=(11, 7), layout="constrained"
        )
    try:
        real = "" if trace.meta.source == "file" else " (generated from a profile)"
        # A name is the user's: nothing in it is mathematics, and bytes that are not UTF-8 have no picture.
        figure.suptitle(f"{printable(trace.meta.name)}{real}: {len(trace):,} requests", parse_math=False)
        _lengths(trace, lengths)
        _scatter(trace, scatter)
        _arrivals(trace, arrivals)
        _gaps(trace, gaps)
        with replacing(target) as temporary:
            figure.savefig(temporary, dpi=150, format=target.suffix.lower().removeprefix("."))
    finally:
        pyplot.close(figure)


def _lengths(trace: Trace, axes: Axes) -> None:
    for name, tokens in (("prompt", trace.prompt_tokens), ("output", trace.output_tokens)):
        axes.ecdf(tokens, label=f"{name}, mean {tokens.mean():,.0f}")
    axes.set(xscale="log", xlabel="tokens", ylabel="share of requests", title="Lengths")
    axes.legend(loc="upper left")


def _scatter(trace: Trace, axes: Axes) -> None:
    every = max(1, len(trace) // MOST_POINTS)
    axes.scatter(
        trace.prompt_tokens[::every],
        trace.output_tokens[::every],
        s=4,
        alpha=0.2,
        linewidths=0,
        rasterized=True,
    )
    axes.set(
        xscale="log", yscale="log", xlabel="prompt tokens", ylabel="output tokens", title="Prompt and output"
    )


def _arrivals(trace: Trace, axes: Axes) -> None:
    axes.set(title="Arrivals")
    if not trace.meta.has_arrivals or trace.duration_s == 0:
        axes.text(0.5, 0.5, "no arrival times", ha="center", va="center", transform=axes.transAxes)
        return
    # A bar a minute; for a long trace as many bars as the picture can show.
    width_s = max(60.0, trace.duration_s / 500)
    counts = np.bincount((trace.arrival_s // width_s).astype(np.int64))
    unit, name = (60.0, "minutes") if trace.duration_s < 3 * 3600 else (3600.0, "hours")
    starts = np.arange(len(counts)) * width_s / unit
    axes.stairs(counts / width_s, np.append(starts, starts[-1] + width_s / unit), fill=True)
    axes.set(xlabel=name, ylabel="requests per second", ylim=(0, None))


def _gaps(trace: Trace, axes: Axes) -> None:
    reused = reused_tokens(trace)
    if reused is not None:
        axes.ecdf(reused / trace.prompt_tokens)
        axes.set(
            xlabel="share of the prompt",
            ylabel="share of requests",
            title="Prompt already seen (prefix reuse)",
        )
        return
    gaps = np.diff(trace.arrival_s)
    axes.set(title="Gaps between arrivals")
    if len(gaps) == 0 or not trace.meta.has_arrivals or gaps.mean() == 0:
        axes.text(0.5, 0.5, "no arrival times", ha="center", va="center", transform=axes.transAxes)
        return
    mean = gaps.mean()
    axes.ecdf(gaps / mean, complementary=True, label=f"trace, CV {gaps.std() / mean:.2f}")
    line = np.linspace(0, float(gaps.max() / mean), 200)
    axes.plot(line, np.exp(-line), linestyle="--", label="Poisson")
    axes.set(yscale="log", ylim=(1 / len(gaps), 1.2), xlabel="gap / mean gap", ylabel="share of gaps longer")
    axes.legend()
