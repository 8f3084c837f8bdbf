"""`laminabench traces ...`: the table of its commands."""

from __future__ import annotations

import click

from laminabench.cli.lazy import Lazy, LazyGroup

_HERE = "laminabench.cli.traces"

COMMANDS = (
    Lazy(
        "list",
        f"{_HERE}.listing:list_traces",
        "The traces known by name, and what is here of each.",
        section="Look",
    ),
    Lazy(
        "info",
        f"{_HERE}.info:info",
        "Lengths, rate, burstiness and prefix reuse of a trace.",
        section="Look",
        example="laminabench traces info azure-conv --plot azure-conv.png",
    ),
    Lazy(
        "fetch",
        f"{_HERE}.fetching:fetch_traces",
        "Download traces, resumable and checked.",
        section="Get",
        example="laminabench traces fetch azure-conv kimi-conv",
    ),
    Lazy(
        "import",
        f"{_HERE}.importing:import_trace",
        "Read a file of yours and keep it under a name.",
        section="Get",
        example="laminabench traces import mine.csv --columns arrival=t,prompt=in,output=out",
    ),
    Lazy(
        "synth",
        f"{_HERE}.synth:synth",
        "Draw requests from a fitted profile.",
        section="Make",
        example="laminabench traces synth azure-conv --requests 5000 -o five-thousand.parquet",
    ),
    Lazy(
        "export",
        f"{_HERE}.export:export",
        "Write a trace, cut and rescaled, as parquet, CSV or JSON lines.",
        section="Make",
        example="laminabench traces export kimi-conv --window 0:600 -o ten-minutes.jsonl",
    ),
    Lazy(
        "fit",
        f"{_HERE}.fitting:fit_profile",
        "Fit an offline profile to a trace.",
        section="Make",
        example="laminabench traces fit mine.csv -o mine.toml",
    ),
)


@click.group(cls=LazyGroup, table=COMMANDS)
def traces() -> None:
    """List, fetch, inspect, fit and generate request traces."""
