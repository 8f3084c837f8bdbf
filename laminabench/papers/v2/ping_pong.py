"""Figure 13: the network ping-pong: published values, and what was measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from laminabench.bench.fhbn.results import SHARE_FROM, read, size_text
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.network import parse_network
from laminabench.papers.context import Context
from laminabench.papers.paper import Result
from laminabench.papers.replays import fitting_all, throughput
from laminabench.systems.modelled.lamina import default_deployment
from laminabench.systems.modelled.setup import Setup
from laminabench.traces.table import Trace

MEASURED = "fhbn-2-cores"
_COLUMNS = ["kind", "engine", "bytes", "rtt_us_p10", "rtt_us_p50", "rtt_us_p99", "gb_per_s"]


def fig13(context: Context) -> Result:
    """Return rows of this project's ping-pong, where there is one, and rows of the paper's values."""
    path = context.measured(MEASURED)
    rows, measured = ([], "no ping-pong was measured here") if path is None else _measured(path)
    published = context.published("fig13")
    stated = [
        {"kind": "published", "engine": name, "rtt_us_p50": trip_us, "gb_per_s": rate}
        for name, trip_us, rate in (
            ("FHBN", published["fhbn_us"], published["fhbn_gb_per_s"]),
            ("NCCL", published["nccl_us"], published["nccl_gb_per_s"]),
        )
    ]
    frame = pd.DataFrame([*stated, *rows], columns=_COLUMNS)
    line_rate = parse_network("fhbn").line_rate_bytes_per_s / 1e9
    ours = frame[frame["kind"] == "measured"]
    large = ours[ours["bytes"] >= SHARE_FROM]
    values = {
        "measured": measured,
        "saved_percent": 100 * (1 - published["fhbn_us"] / published["nccl_us"]),
        "line_rate": 8 * line_rate,
        "line_percent": 100 * published["fhbn_gb_per_s"] / line_rate,
        "by_host_us": 1e6 * parse_network(BY_HOST).rtt_s,
        "lost": _lost(context),
        "scale": "log2" if len(ours) else "linear",
        "trip_scale": "log" if len(ours) else "linear",
        "trip_limits": [] if len(ours) else [0, 80],
        **_ticks("trip", ours),
        **_ticks("rate", large),
    }
    return Result(frame, values, {"trips": ours, "rates": large})


def _measured(path: Path) -> tuple[list[dict[str, str | float]], str]:
    ping_pong = read(path)
    rows = [{"kind": "measured", **{key: row[key] for key in _COLUMNS[1:]}} for row in ping_pong["rows"]]
    host = ping_pong["host"]
    where = (
        f"measured between two processes on {host['cores']} cores of one machine ({host['cpu']}), through "
        "memory and with no network: another thing than the published values, to be read next to them only; "
        "bands are p10 to p99"
    )
    return rows, where


def _ticks(name: str, rows: pd.DataFrame) -> dict[str, list[Any]]:
    """Return marks at sizes that were measured, few enough that they do not touch."""
    sizes = sorted(set(rows["bytes"].astype(int)))[::2]
    return {f"{name}_sizes": sizes, f"{name}_names": [size_text(size) for size in sizes]}


BY_HOST = "gdr-host"
_TRACES, _FIRST = ("azure-conv", "kimi-conv"), 4000
_MODELS = ("llama-33b", "llama-65b", "llama3-70b")


def _lost(context: Context) -> dict[str, dict[int, list[float]]]:
    """Compute what a host in the way of transfers costs, in percent, by network and number of batches."""
    traces = [context.trace(name).first(_FIRST) for name in _TRACES]
    rates = {
        (network, batches): [
            _rate(trace, setup, network) for setup in _setups(context, batches) for trace in traces
        ]
        for network in ("fhbn", "nccl", BY_HOST)
        for batches in (1, 2)
    }

    def lost(network: str, batches: int) -> list[float]:
        pairs: Sequence[tuple[float, float]] = list(
            zip(rates[network, batches], rates["fhbn", batches], strict=True)
        )
        return [100 * (1 - over / best) for over, best in pairs]

    return {network: {batches: lost(network, batches) for batches in (1, 2)} for network in ("nccl", BY_HOST)}


def _setups(context: Context, batches: int) -> list[Setup]:
    shapes = [model(name) for name in _MODELS]
    return [
        Setup(shape, parse_deployment(default_deployment(shape)), costs, parse_network("fhbn"), batches)
        for shape in shapes
        for costs in context.costs()
    ]


def _rate(trace: Trace, setup: Setup, network: str) -> float:
    """Return tokens a second over this network, of the requests that fit."""
    over = replace(setup, network=parse_network(network))
    return throughput(fitting_all(trace, [("lamina", over)]), "lamina", over)
