"""`laminabench bench attention`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.ranges import positive
from laminabench.cli.verdict import device_option, seconds_option, verdict

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@seconds_option("30")
@click.option(
    "--kv-mb",
    metavar="X",
    callback=positive,
    default="256",
    show_default=True,
    help="Keys and values of one call, in MiB: more than any cache holds, or the caches are measured.",
)
@device_option("the GPU kernel")
@reporting
def attention(seconds: float, kv_mb: float, device: str, out: Output) -> None:
    """Decode attention's speed on this machine, as a share of what its memory can be read at."""
    from laminabench.extras import needed

    with needed(), out.progress("cases", unit="cases") as progress:
        if device == "cuda":
            from laminabench.bench import attention_cuda

            result = attention_cuda.run(progress=progress)
        else:
            from laminabench.bench.attention import run

            result = run(seconds, int(kv_mb * (1 << 20)), progress)
    render = _render_cuda if device == "cuda" else _render
    out.result(result, lambda console: render(console, result))


def _render(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("heads", "numbers", "slots"):
        table.add_column(title)
    for title in ("attention GB/s", "memory GB/s", "share", "min to max", "torch GB/s"):
        table.add_column(title, justify="right")
    table.add_column(f"target {result['target_share']:.0%}")
    for row in result["rows"]:
        share = row["share"]
        table.add_row(
            row["case"],
            row["dtype"],
            row["order"],
            f"{row['attention_bytes_per_s']['median'] / 1e9:.1f}",
            f"{row['bandwidth_bytes_per_s']['median'] / 1e9:.1f}",
            f"{share['median']:.0%}",
            f"{share['min']:.0%} to {share['max']:.0%}",
            f"{row['sdpa_bytes_per_s']['median'] / 1e9:.1f}",
            verdict(row["met"]),
        )
    console.print(table)
    first = result["rows"][0]
    console.print(
        f"{result['threads']} threads, {result['isa']}; {first['batch']} requests, "
        f"{first['kv_bytes'] / 1e6:,.0f} MB of keys and values, head_dim {first['head_dim']}"
    )


def _render_cuda(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    copy = result["copy_bandwidth_bytes_per_s"]["median"]
    console.print(f"{result['device']}, which copies {copy / 1e9:,.0f} GB/s; bfloat16, slots at random")
    table = Table(box=None, pad_edge=False)
    table.add_column("kind")
    names = ("lamina", "sdpa", "flex")
    for title in ("batch", "context", *(f"{name}, share of it" for name in names)):
        table.add_column(title, justify="right")
    table.add_column(f"target {result['target_share']:.0%}")
    for row in result["rows"]:
        shares = row.get("share", {})
        table.add_row(
            row["kind"],
            f"{row['batch']}",
            f"{row['context']:,}",
            *(f"{shares[name]:.0%}" if name in shares else "-" for name in names),
            row["skipped"] if "skipped" in row else verdict(row["met"]),
        )
    console.print(table)
