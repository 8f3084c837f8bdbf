"""`laminabench bench plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.verdict import verdict

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes at once; as many as cores by default.")
@reporting
def plan(repeats: int, jobs: int | None, out: Output) -> None:
    """Time the search for a plan, in turns with replaying every candidate."""
    from laminabench.bench.plan import run

    with out.progress("planning", unit="searches") as told:
        row = run(repeats, jobs, told)
    out.result({"benchmark": "plan", **row}, lambda console: _render(console, row))


def _render(console: Console, row: dict[str, Any]) -> None:
    from laminabench.cli.plan_text import counted

    rate, ratio = row["candidates_per_s"], row["times_faster_than_grid"]
    console.print(f"{row['what']}: {row['candidates']:,} candidates")
    console.print(
        f"search      [bold]{rate['median']:,.0f} candidates/s[/bold] ({rate['min']:,.0f} to "
        f"{rate['max']:,.0f}), target {row['target_per_s']:g}: {verdict(row['met'])}"
    )
    console.print(
        f"every one   takes {ratio['median']:.1f} times as long ({ratio['min']:.1f} to {ratio['max']:.1f}); "
        f"{'the same' if row['same_winner'] else '[red]another[/red]'} winner, "
        f"{'the same' if row['same_front'] else 'another'} front"
    )
    console.print(f"[dim]{counted(row['counts'])}[/dim]", soft_wrap=True)
