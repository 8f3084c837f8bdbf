"""`laminabench traces info`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.traces.options import TraceOptions, trace_options
from laminabench.present.terminal import literal
from laminabench.traces.describe import describe
from laminabench.traces.plot import check_suffix, plot_trace

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("trace")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it: .png, .svg or .pdf.")
@trace_options
@reporting
def info(trace: str, plot: Path | None, workload: TraceOptions, out: Output) -> None:
    """Lengths, rate, burstiness and prefix reuse of TRACE: a catalogue name, an imported name or a file."""
    if plot is not None:
        check_suffix(plot)
    table = workload.load(trace, out)
    facts = describe(table)
    if plot is not None:
        plot_trace(table, plot)
        out.note(f"drew {plot}")
    out.result(facts, lambda console: _render(console, facts))


def _render(console: Console, facts: dict[str, Any]) -> None:
    from rich.table import Table

    source = {"file": "the real trace", "profile": "generated from a profile, not the real trace"}[
        facts["source"]
    ]
    name, origin = literal(facts["name"]), literal(facts["origin"])
    console.print(f"[bold]{name}[/bold]  {source}: {origin}", soft_wrap=True)
    console.print(f"requests      {facts['requests']:,}" + _sessions(facts))
    if facts["duration_s"] is None:
        console.print("arrivals      none recorded: an open replay needs --request-rate")
    else:
        rate = "" if facts["rate_per_s"] is None else f", {facts['rate_per_s']:.3g} requests/s"
        console.print(f"duration      {facts['duration_s']:,.1f} s{rate}")
    if facts["interarrival_cv"] is not None:
        console.print(f"burstiness    {facts['interarrival_cv']:.2f} inter-arrival CV (1 is Poisson)")
    if facts["prefix_share"] is not None:
        console.print(f"prefix share  {facts['prefix_share']:.1%} of prompt tokens repeat an earlier prefix")
    lengths = Table(box=None, pad_edge=False)
    lengths.add_column("tokens       ")
    for title in facts["prompt"]:
        lengths.add_column(title, justify="right")
    for which in ("prompt", "output"):
        lengths.add_row(
            which,
            *(f"{value:,.1f}" if name == "mean" else f"{value:,}" for name, value in facts[which].items()),
        )
    console.print(lengths)
    if facts["citation"]:
        console.print(f"[dim]{literal(facts['license'])}; cite {literal(facts['citation'])}[/dim]")


def _sessions(facts: dict[str, Any]) -> str:
    return "" if facts["sessions"] is None else f" in {facts['sessions']:,} sessions"
