"""`laminabench traces export`."""

from __future__ import annotations

from pathlib import Path

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.traces.options import TRACE_FILE, TraceOptions, target_option, trace_options
from laminabench.cli.traces.writing import write_trace
from laminabench.traces.store import check_suffix


@click.command()
@click.argument("trace")
@target_option(TRACE_FILE)
@trace_options
@reporting
def export(trace: str, target: Path, workload: TraceOptions, out: Output) -> None:
    """Write TRACE, cut and rescaled, to a file that any laminabench command (and most tools) can read."""
    check_suffix(target)
    table = workload.load(trace, out)
    write_trace(table, target, out)
