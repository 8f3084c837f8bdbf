"""`laminabench traces export`."""

from __future__ import annotations

from pathlib import Path

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.traces.options import TraceOptions, trace_options
from laminabench.traces.describe import describe
from laminabench.traces.store import save


@click.command()
@click.argument("trace")
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="FILE.parquet, .csv or .jsonl.",
)
@trace_options
@reporting
def export(trace: str, target: Path, workload: TraceOptions, out: Output) -> None:
    """Write TRACE, cut and rescaled, to a file that any laminabench command (and most tools) can read."""
    table = workload.load(trace, out)
    save(table, target)
    facts = {**describe(table), "path": str(target)}
    out.result(
        facts, lambda console: console.print(f"wrote {len(table):,} requests to {target}", soft_wrap=True)
    )
