"""Figure 13: the network ping-pong: published values, and beside them what was measured here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from laminabench.bench.fhbn.results import SHARE_FROM, read, size_text
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.network import parse_network
from laminabench.figures.claims import SERVED, Basis, Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import ends
from laminabench.render.style import BLUE, PAGE, VERMILION, Looks, published_line, sheet
from laminabench.systems.modelled.lamina import default_deployment
from laminabench.systems.modelled.setup import Setup
from laminabench.traces.table import Trace
from laminabench.workflows.compare.spec import longest_held, without_longer
from laminabench.workflows.replay import Workload, replay

KEPT = "fhbn-2-cores"
# Section 6.3, GPUs of two nodes over 400 Gbit/s RoCE: round trip of small messages, peak bandwidth.
PUBLISHED = {"FHBN": (33.0, 45.7), "NCCL": (66.6, 35.5)}
_LOOKS = {"shm": (BLUE, "o"), "gloo": (VERMILION, "s")}


def fig13(ground: Ground) -> Made:
    """Rows of the kept ping-pong, where there is one, and the paper's values as rows of their own."""
    kept = ground.measured(KEPT)
    rows, how = ([], "no ping-pong was measured here") if kept is None else _measured(kept)
    published = [
        {"kind": "published", "engine": engine, "rtt_us_p50": rtt_us, "gb_per_s": rate}
        for engine, (rtt_us, rate) in PUBLISHED.items()
    ]
    columns = ["kind", "engine", "bytes", "rtt_us_p10", "rtt_us_p50", "rtt_us_p99", "gb_per_s"]
    frame = pd.DataFrame([*published, *rows], columns=columns)
    return Made(
        frame,
        [*_claims(), *_end_to_end(ground)],
        "Published (grey): GPUs of two nodes over 400 Gbit/s RoCE, round trip of small messages and peak "
        f"bandwidth. Ours: {how}.",
        _draw,
    )


def _measured(kept: Path) -> tuple[list[dict[str, Any]], str]:
    found = read(kept)
    rows = [
        {"kind": "measured", **{key: row[key] for key in row if key.startswith("rtt_us_p") or key in _KEPT}}
        for row in found["rows"]
    ]
    host = found["host"]
    where = (
        f"measured between two processes on {host['cores']} cores of one machine ({host['cpu']}), through "
        "memory and with no network: another thing than the published values, to be read beside them only; "
        "bands are p10 to p99"
    )
    return rows, where


_KEPT = ("engine", "bytes", "gb_per_s")


def _claims() -> list[Claim]:
    (fhbn_us, fhbn_rate), (nccl_us, nccl_rate) = PUBLISHED.values()
    line_rate = parse_network("fhbn").line_rate_bytes_per_s / 1e9
    remark = "Taken as it is published by the modelled cluster (--network fhbn, nccl)."
    own: tuple[Basis, ...] = ("paper's own numbers",)
    entered = Section(
        "section 6.3",
        "not measured: no two machines with GPUs and such NICs were at hand",
        "performance",
        own,
    )
    computed = Section("section 6.3", "computed: from the paper's own numbers", "bookkeeping", own)
    return [
        entered("round trip with FHBN", fhbn_us, None, "us", remark=remark),
        entered("round trip with NCCL", nccl_us, None, "us", remark=remark),
        computed("what FHBN takes off NCCL's round trip", 50.5, 100 * (1 - fhbn_us / nccl_us), "%"),
        entered("peak bandwidth with FHBN", fhbn_rate, None, "GB/s", remark=remark),
        computed(
            f"that is of the line rate of {8 * line_rate:.0f} Gbit/s",
            91.4,
            100 * fhbn_rate / line_rate,
            "%",
            where="section 6.3, figure 13",
        ),
        entered("peak bandwidth with NCCL", nccl_rate, None, "GB/s", remark=remark),
        entered(
            "one way with GPUDirect that the host drives, steps 1 to 5",
            (60.0, 70.0),
            None,
            "us",
            where="section 4.1",
            remark="In the modelled cluster as --network gdr-host, with a round trip of "
            f"{1e6 * parse_network(BY_HOST).rtt_s:g} us: twice the middle of this and the launch below. "
            f"NCCL, which has a host in it too, takes {nccl_us} us there and back in section 6.3.",
        ),
        entered(
            "launch of the kernel behind it",
            20.0,
            None,
            "us",
            "at most",
            where="section 4.1",
            remark="Part of gdr-host's round trip.",
        ),
    ]


BY_HOST = "gdr-host"
_TRACES, _FIRST = ("azure-conv", "kimi-conv"), 4000
_MODELS = ("llama-33b", "llama-65b", "llama3-70b")
_BATCHES = {1: "one batch at a time", 2: "two batches in rotation"}


def _end_to_end(ground: Ground) -> list[Claim]:
    """What a host in the way of every transfer costs a whole system: the same replays over each network."""
    traces = [ground.trace(name).first(_FIRST) for name in _TRACES]
    how = (
        f"modelled: {ground.sets}; the first {_FIRST:,} requests of {' and '.join(_TRACES)}, "
        f"{', '.join(_MODELS)} on table 5's devices"
    )
    says = Section("section 4.1", how, "performance", SERVED)
    lost = {
        (network, batches): ends(
            pd.Series(
                [
                    100 * (1 - _rate(trace, setup, network) / _rate(trace, setup, "fhbn"))
                    for setup in _setups(ground, batches)
                    for trace in traces
                ]
            )
        )
        for network in ("nccl", BY_HOST)
        for batches in _BATCHES
    }

    def spans(network: str) -> str:
        each = {words: lost[network, batches] for batches, words in _BATCHES.items()}
        return "; ".join(f"{low:.1f} to {high:.1f} % with {words}" for words, (low, high) in each.items())

    hidden = (
        "While one batch's data travel, the other computes: rotation hides most of what FHBN takes off a "
        "transfer. With one batch it is all to be seen."
    )
    what = "tokens a second that Lamina loses over"
    return [
        says(
            f"{what} GPUDirect that the host drives, in place of FHBN",
            '"significant overhead"',
            spans(BY_HOST),
            remark=hidden,
        ),
        says(
            f"{what} NCCL, in place of FHBN",
            '"not possible" with it',
            spans("nccl"),
            where="section 1.2",
            remark=hidden,
        ),
    ]


def _setups(ground: Ground, batches: int) -> list[Setup]:
    shapes = [model(name) for name in _MODELS]
    return [
        Setup(shape, parse_deployment(default_deployment(shape)), costs, parse_network("fhbn"), batches)
        for shape in shapes
        for costs in ground.costs()
    ]


def _rate(trace: Trace, setup: Setup, network: str) -> float:
    """Tokens a second over this network, of the requests that fit."""
    over = replace(setup, network=parse_network(network))
    kept = without_longer(trace, longest_held("lamina", over))
    rate = replay(kept, "lamina", over, Workload()).summary.throughput_tokens_per_s
    assert rate is not None
    return rate


def _draw(frame: pd.DataFrame) -> Figure:
    """Round trips on the left, bandwidth on the right: measured as curves, published dotted."""
    figure, (trips, rates) = sheet(1, 2, width=PAGE, height=2.8)
    measured = frame[frame["kind"] == "measured"]
    for engine, mine in measured.groupby("engine", sort=False):
        colour, mark = _LOOKS[str(engine)]
        looks: Looks = {"color": colour, "marker": mark, "markersize": 3}
        trips.plot(mine["bytes"], mine["rtt_us_p50"], label=f"{engine}, measured on one machine", **looks)
        trips.fill_between(
            mine["bytes"], mine["rtt_us_p10"], mine["rtt_us_p99"], color=colour, alpha=0.2, lw=0
        )
        large = mine[mine["bytes"] >= SHARE_FROM]
        rates.plot(large["bytes"], large["gb_per_s"], **looks)
    for engine, (rtt_us, rate) in PUBLISHED.items():
        # Where no curve of the kept measurement passes.
        _published(trips, rtt_us, f"{engine}, {rtt_us} us", 0.01, "top")
        _published(rates, rate, f"{engine}, {rate} GB/s", 0.17, "bottom")
    trips.set_ylabel("round trip, us")
    rates.set_ylabel("one way, GB/s")
    _by_size(trips, measured)
    _by_size(rates, measured[measured["bytes"] >= SHARE_FROM])
    if len(measured):
        trips.set_yscale("log")
        figure.legend(*trips.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    else:
        trips.margins(y=0.2)
        trips.set_ylim(0, None)
        rates.margins(y=0.2)
    rates.set_ylim(0, None)
    return figure


def _published(axes: Axes, value: float, words: str, x: float, va: str) -> None:
    published_line(axes, value, "_published")
    axes.annotate(
        f"published: {words}",
        (x, value),
        xycoords=("axes fraction", "data"),
        xytext=(0, -1.5 if va == "top" else 1),
        textcoords="offset points",
        va=va,
        fontsize=6,
    )


def _by_size(axes: Axes, measured: pd.DataFrame) -> None:
    """Marks at sizes that were measured, few enough that they do not touch; none where nothing was."""
    axes.set_xlabel("message")
    if not len(measured):
        axes.set_xticks([])
        return
    axes.set_xscale("log", base=2)
    shown = sorted(set(measured["bytes"].astype(int)))[::2]
    axes.set_xticks(shown, [size_text(size) for size in shown])
    axes.minorticks_off()
