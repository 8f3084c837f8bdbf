"""`laminabench bench endpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.ranges import NumberRange
from laminabench.cli.traces.options import COUNT
from laminabench.cli.verdict import verdict

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.option(
    "--request-rate",
    type=NumberRange(1, 1e6),
    default=2000.0,
    show_default=True,
    help="Requests offered a second.",
)
@click.option("--output-tokens", type=COUNT, default=50, show_default=True, help="Of each request.")
@click.option("--prompt-tokens", type=COUNT, default=256, show_default=True, help="Of each request.")
@click.option(
    "--tokens-a-chunk",
    type=COUNT,
    multiple=True,
    default=(1, 5),
    show_default=True,
    help="Repeatable: a load for each.",
)
@click.option(
    "--gap-ms", type=NumberRange(1, 1e4), default=10.0, show_default=True, help="Between chunks of a stream."
)
@click.option(
    "--seconds", type=NumberRange(1, 3600), default=5.0, show_default=True, help="That requests are offered."
)
@click.option(
    "--client-workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Client processes."
)
@reporting
def endpoint(
    request_rate: float,
    output_tokens: int,
    prompt_tokens: int,
    tokens_a_chunk: tuple[int, ...],
    gap_ms: float,
    seconds: float,
    client_workers: int,
    out: Output,
) -> None:
    """Offer requests to a mock server over loopback, and see how late the client itself sends them.

    The server is another process on this machine: where the two have no core each, what is measured is how
    they share one.
    """
    from laminabench.extras import endpoint_needed as needed

    with needed():
        from laminabench.bench.endpoint import Load, run

        loads = [
            Load(request_rate, seconds, prompt_tokens, output_tokens, min(each, output_tokens), gap_ms / 1e3)
            for each in tokens_a_chunk
        ]
        with out.progress("loads", unit="loads") as progress:
            result = run(loads, client_workers, progress)
    out.result(result, lambda console: _render(console, result))


def _render(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    workers = result["client_workers"]
    clients = "one client process" if workers == 1 else f"{workers} client processes"
    rates = (
        f"{result['target_requests_per_s']:,.0f} requests/s, {result['target_tokens_per_s']:,.0f} tokens/s"
    )
    late = f"lateness p99 within {result['target_lateness_p99_ms']:g} ms"
    cores = f"a mock server on {result['cores']} cores"
    console.print(f"{clients} and {cores}; target {rates}, {late}", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    lateness = ("late p50", "p99", "max ms")
    for title in (
        "tokens a chunk",
        "requests/s",
        "tokens/s",
        *lateness,
        "client us/chunk",
        "mock",
        "failed",
        "",
    ):
        table.add_column(title, justify="right")
    for row in result["loads"]:
        found = row["lateness_ms"]
        table.add_row(
            f"{row['tokens_a_chunk']:,}",
            f"{row['requests_per_s']:,.0f} of {row['offered_requests_per_s']:,.0f}",
            f"{row['tokens_per_s']:,.0f} of {row['offered_tokens_per_s']:,.0f}",
            f"{found['p50']:.2f}",
            f"{found['p99']:.2f}",
            f"{found['max']:.2f}",
            f"{row['client_cpu_us_per_chunk']:.1f}",
            f"{row['server_cpu_us_per_chunk']:.1f}",
            f"{row['failed']:,}",
            verdict(row["met"]),
        )
    console.print(table)
