"""`laminabench bench attention`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.traces.options import positive

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.option(
    "--seconds",
    metavar="X",
    callback=positive,
    default="30",
    show_default=True,
    help="About how long to measure.",
)
@click.option(
    "--kv-mb",
    metavar="X",
    callback=positive,
    default="256",
    show_default=True,
    help="Keys and values of one call, in MiB: more than any cache holds, or the caches are measured.",
)
@reporting
def attention(seconds: float, kv_mb: float, out: Output) -> None:
    """Decode attention's speed on this machine, as a share of what its memory can be read at."""
    from laminabench.bench.attention import run  # noqa: PLC0415 - torch is slow to import

    result = run(seconds, int(kv_mb * (1 << 20)))
    out.result(result, lambda console: _render(console, result))


def _render(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table  # noqa: PLC0415 - not for --json

    table = Table(box=None, pad_edge=False)
    for title in ("heads", "numbers", "slots"):
        table.add_column(title)
    for title in ("attention GB/s", "memory GB/s", "share", "min to max", "torch GB/s"):
        table.add_column(title, justify="right")
    table.add_column(f"target {result['target_share']:.0%}")
    for row in result["rows"]:
        share = row["share"]
        verdict = {None: "[dim]not judged[/dim]", True: "[green]met[/green]", False: "[red]missed[/red]"}[
            row["met"]
        ]
        table.add_row(
            row["case"],
            row["dtype"],
            row["order"],
            f"{row['attention_bytes_per_s']['median'] / 1e9:.1f}",
            f"{row['bandwidth_bytes_per_s']['median'] / 1e9:.1f}",
            f"{share['median']:.0%}",
            f"{share['min']:.0%} to {share['max']:.0%}",
            f"{row['sdpa_bytes_per_s']['median'] / 1e9:.1f}",
            verdict,
        )
    console.print(table)
    first = result["rows"][0]
    console.print(
        f"{result['threads']} threads, {result['isa']}; {first['batch']} requests, "
        f"{first['kv_bytes'] / 1e6:,.0f} MB of keys and values, head_dim {first['head_dim']}"
    )
