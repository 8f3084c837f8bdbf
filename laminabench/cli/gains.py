"""`laminabench gains`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from laminabench.cli.output import Output, reporting

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.compare.cells import Cell

MODELS = ("llama-33b", "llama-65b", "llama3-70b")
TRACES = ("azure-conv", "azure-code", "kimi-conv")
COSTS = ("vllm-0.14", "vidur-2024")
# v2 6.1, over 3 models and 4 traces.
PUBLISHED = "the paper measured 16.1 to 90.1 % and a mean batch ratio of 2.39"


@click.command()
@click.option("--model", "models", multiple=True, help="Repeatable; the three of v2 Table 3 by default.")
@click.option(
    "--trace", "traces", multiple=True, help="Repeatable; azure-conv, azure-code and kimi-conv by default."
)
@click.option("--costs", "costs", multiple=True, help="Repeatable; both measured sets by default.")
@click.option("--network", default="fhbn", show_default=True, help="As for replay.")
@click.option(
    "--host-async",
    type=click.Choice(["neither", "both", "lamina"]),
    default="neither",
    show_default=True,
    help="Whose host prepares an iteration while the one before it runs.",
)
@click.option("--offline", is_flag=True, help="Never download; use what is here, else the profile.")
@reporting
def gains(
    models: tuple[str, ...],
    traces: tuple[str, ...],
    costs: tuple[str, ...],
    network: str,
    host_async: str,
    offline: bool,
    out: Output,
) -> None:
    """Lamina against vLLM at about equal cost (the deployments of v2 Table 5), both modelled.

    Both get the same requests: those that one of them could never hold are left out and counted.
    """
    from laminabench.catalog.cost_file import load_costs  # noqa: PLC0415 - numpy, not for --help
    from laminabench.catalog.find_model import model  # noqa: PLC0415
    from laminabench.catalog.network import parse_network  # noqa: PLC0415
    from laminabench.compare.cells import PAIR, cells  # noqa: PLC0415
    from laminabench.traces.resolve import resolve  # noqa: PLC0415

    found = list(
        cells(
            [model(name) for name in models or MODELS],
            [resolve(name, offline=offline, notice=out.note) for name in traces or TRACES],
            [load_costs(name) for name in costs or COSTS],
            parse_network(network),
            host_async={"neither": (), "both": PAIR, "lamina": ("lamina",)}[host_async],
        )
    )
    ratios = [cell.batch_ratio for cell in found]
    result = {
        "backend": "modelled",
        "host_async": host_async,
        "cells": [cell.row() for cell in found],
        "mean_batch_ratio": sum(ratios) / len(ratios),
        "published": PUBLISHED,
    }
    out.result(result, lambda console: _render(console, found))


def _render(console: Console, cells: list[Cell]) -> None:
    from rich.table import Table  # noqa: PLC0415 - not for --json

    table = Table(box=None, pad_edge=False, title="modelled, saturated, steady state", title_justify="left")
    for title in ("costs", "model", "trace"):
        table.add_column(title)
    for title in ("vllm tok/s", "lamina tok/s", "gain", "per $", "batch", "ratio", "TBT p50 ms", "left out"):
        table.add_column(title, justify="right")
    for cell in cells:
        rate, batch, tbt = cell.throughput_tokens_per_s, cell.mean_batch, cell.tbt_ms
        table.add_row(
            cell.costs,
            cell.model,
            cell.trace,
            f"{rate['vllm']:,.0f}",
            f"{rate['lamina']:,.0f}",
            f"{cell.gain:+.1%}",
            f"{cell.gain_per_dollar:+.1%}",
            f"{batch['vllm']:,.1f} / {batch['lamina']:,.1f}",
            f"{cell.batch_ratio:.2f}",
            " / ".join("-" if tbt[name] is None else f"{tbt[name]:.0f}" for name in ("vllm", "lamina")),
            f"{cell.dropped:,}",
        )
    console.print(table)
    for costs in dict.fromkeys(cell.costs for cell in cells):
        own = [cell for cell in cells if cell.costs == costs]
        ratio = sum(cell.batch_ratio for cell in own) / len(own)
        low, high = min(cell.gain for cell in own), max(cell.gain for cell in own)
        console.print(
            f"{costs}: gain {low:+.1%} to {high:+.1%}, mean batch ratio {ratio:.2f} over {len(own)} cells"
        )
    rates = cells[0].usd_per_hour
    console.print(
        f"[dim]gain: on the deployments of v2 Table 5 (first: lamina ${rates['lamina']:.2f} and vllm "
        f"${rates['vllm']:.2f} an hour); per $: at exactly equal cost[/dim]"
    )
    console.print(f"[dim]{PUBLISHED} over 12 cells; nothing here is tuned to it[/dim]")
