"""`laminabench bench sim`."""

from __future__ import annotations

import click

from laminabench.cli.bench_rows import render_times
from laminabench.cli.output import Output, reporting


@click.command()
@click.option("--week", is_flag=True, help="Also the 27-million-request week (over a minute).")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@reporting
def sim(week: bool, repeats: int, out: Output) -> None:
    """Time the virtual cluster, targets beside what came out."""
    from laminabench.bench.sim import run

    rows = run(week=week, repeats=repeats)
    met = all(row["met"] for row in rows)
    out.result({"benchmark": "sim", "rows": rows, "met": met}, lambda console: render_times(console, rows))
