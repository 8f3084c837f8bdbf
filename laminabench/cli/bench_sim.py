"""`laminabench bench sim`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.verdict import verdict

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.option("--week", is_flag=True, help="Also the 27-million-request week (over a minute).")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@reporting
def sim(week: bool, repeats: int, out: Output) -> None:
    """Time the virtual cluster, targets beside what came out."""
    from laminabench.bench.sim import run  # noqa: PLC0415 - numpy is slow to import

    rows = run(week=week, repeats=repeats)
    out.result(
        {"benchmark": "sim", "rows": rows, "met": all(row["met"] for row in rows)}, lambda c: _render(c, rows)
    )


def _render(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table  # noqa: PLC0415 - not for --json

    table = Table(box=None, pad_edge=False)
    table.add_column("what")
    for title in ("median", "min to max", "target", ""):
        table.add_column(title, justify="right")
    for row in rows:
        seconds = row["seconds"]
        peak = (
            f", {row['peak_bytes'] / 1e9:.1f} of {row['target_bytes'] / 1e9:g} GB"
            if "peak_bytes" in row
            else ""
        )
        table.add_row(
            row["what"] + peak,
            _time(seconds["median"]),
            f"{_time(seconds['min'])} to {_time(seconds['max'])}",
            _time(row["target_s"]),
            verdict(row["met"]),
        )
    console.print(table)


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"
