"""`laminabench bench h2m2`."""

from __future__ import annotations

import click

from laminabench.cli.bench_rows import render_times
from laminabench.cli.output import Output, reporting


@click.command()
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@reporting
def h2m2(repeats: int, out: Output) -> None:
    """Time decisions about mapping, and replays on boards, targets beside what came out."""
    from laminabench.bench.h2m2 import run

    rows = run(repeats=repeats)
    met = all(row["met"] is not False for row in rows)
    out.result({"benchmark": "h2m2", "rows": rows, "met": met}, lambda console: render_times(console, rows))
