"""`laminabench bench slab`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.verdict import seconds_option, verdict

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@seconds_option("3")
@reporting
def slab(seconds: float, out: Output) -> None:
    """Token allocations per second of the KV slab allocator, on one core, target beside them."""
    from laminabench.bench.slab import run

    result = run(seconds)
    out.result(result, lambda console: _render(console, result))


def _render(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("call")
    for title in ("requests", "tokens each", "million tokens/s", "min to max"):
        table.add_column(title, justify="right")
    table.add_column(f"target {result['target_allocations_per_s'] / 1e6:g}")
    for row in result["rows"]:
        rates = row["allocations_per_s"]
        table.add_row(
            row["operation"],
            f"{row['requests']:,}",
            f"{row['tokens_per_request']:,}",
            f"{rates['median'] / 1e6:,.0f}",
            f"{rates['min'] / 1e6:,.0f} to {rates['max'] / 1e6:,.0f}",
            verdict(row["met"]),
        )
    console.print(table)
