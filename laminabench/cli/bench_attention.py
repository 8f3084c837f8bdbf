"""`laminabench bench attention`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.traces.options import COUNT

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.option("--rounds", type=COUNT, help="Rounds of the alternating run.  [default: 9; on a GPU 15]")
@click.option(
    "--megabytes", type=COUNT, default=256, show_default=True, help="KV that a call reads, on a CPU."
)
@click.option("--threads", type=click.IntRange(min=0), default=0, help="On a CPU; 0: one a core.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda measures the GPU kernel; it has not been verified on hardware.",
)
@reporting
def attention(rounds: int | None, megabytes: int, threads: int, device: str, out: Output) -> None:
    """Decode attention against the memory's bandwidth, and torch's attention beside it."""
    from laminabench.cli.engine_extra import needed  # noqa: PLC0415 - torch takes a second to import

    with needed(), out.progress("cases", unit="cases") as progress:
        if device == "cuda":
            from laminabench.bench import attention_cuda  # noqa: PLC0415

            result = attention_cuda.run(rounds=rounds or 15, progress=progress)
            out.result(result, lambda console: _render_cuda(console, result))
            return
        from laminabench.bench import attention as bench  # noqa: PLC0415

        result = bench.run(nbytes=megabytes << 20, rounds=rounds or 9, threads=threads, progress=progress)
    out.result(result, lambda console: _render(console, result))


def _render(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table  # noqa: PLC0415 - not for --json

    first = result["rows"][0]
    console.print(
        f"{first['kv_bytes'] / 1e6:,.0f} MB of KV a call, head dim {result['head_dim']}, {first['threads']} "
        f"threads, {first['isa']}; share: of the bandwidth that the same threads read the same memory with"
    )
    table = Table(box=None, pad_edge=False)
    for title in ("heads", "dtype", "slots"):
        table.add_column(title)
    for title in ("batch", "context", "GB/s read", "lamina", "share", "min to max", "torch SDPA", "faster"):
        table.add_column(title, justify="right")
    table.add_column(f"target {result['target_share']:.0%}")
    for row in result["rows"]:
        share = row["share_of_bandwidth"]
        table.add_row(
            f"{row['heads']} / {row['kv_heads']}",
            row["dtype"],
            row["order"],
            f"{row['batch']}",
            f"{row['context']:,}",
            f"{row['read_bandwidth_bytes_per_s']['median'] / 1e9:.1f}",
            f"{row['lamina_s']['median'] * 1e3:.1f} ms",
            f"{share['median']:.0%}",
            f"{share['min']:.0%} to {share['max']:.0%}",
            f"{row['sdpa_s']['median'] * 1e3:.1f} ms",
            f"{row['speedup_over_sdpa']['median']:.1f}x",
            _verdict(row["met"]),
        )
    console.print(table)


def _render_cuda(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table  # noqa: PLC0415 - not for --json

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
            row["skipped"] if "skipped" in row else _verdict(row["met"]),
        )
    console.print(table)


def _verdict(met: bool | None) -> str:
    return {None: "[dim]not judged[/dim]", True: "[green]met[/green]", False: "[red]missed[/red]"}[met]
