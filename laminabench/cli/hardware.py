"""`laminabench hardware list|show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.facts import render_facts
from laminabench.cli.hardware_boards import boards
from laminabench.cli.output import Output, reporting

if TYPE_CHECKING:
    from rich.console import Console


@click.group()
def hardware() -> None:
    """The devices of the catalogue: what they can do, and what they cost."""


hardware.add_command(boards)


def price_options(command: Any) -> Any:
    """--price DEVICE=USD and --power DEVICE=WATTS, repeatable, and --price-basis."""
    for option in (
        click.option(
            "--price-basis",
            type=click.Choice(["rent", "purchase"]),
            help="Rents, or purchases spread over four years with power; rent where there is one by default.",
        ),
        click.option(
            "--power",
            "powers",
            multiple=True,
            metavar="DEVICE=WATTS",
            help="Rated power instead of the catalogue's.",
        ),
        click.option(
            "--price",
            "prices",
            multiple=True,
            metavar="DEVICE=USD",
            help="Price per hour instead of the catalogue's.",
        ),
    ):
        command = option(command)
    return command


@hardware.command("list")
@price_options
@reporting
def list_hardware(
    prices: tuple[str, ...], powers: tuple[str, ...], price_basis: str | None, out: Output
) -> None:
    """All devices, a line each."""
    from laminabench.catalog.hardware import priced_devices

    rows = [found.describe() for found in priced_devices(prices, price_basis, powers).values()]
    out.result({"hardware": rows}, lambda console: _render(console, rows))


@hardware.command()
@click.argument("name")
@price_options
@reporting
def show(
    name: str, prices: tuple[str, ...], powers: tuple[str, ...], price_basis: str | None, out: Output
) -> None:
    """Every number of one device, and its source."""
    from laminabench.catalog.hardware import device, priced_devices

    facts = device(name, priced_devices(prices, price_basis, powers)).describe()
    out.result(facts, lambda console: render_facts(console, facts))


def _render(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("device")
    for title in ("bf16 TFLOPS", "GB", "GB/s", "W", "$/hour"):
        table.add_column(title, justify="right")
    table.add_column("price is")
    table.add_column("what it is")
    for row in rows:
        price, tflops = row["price"], row["tflops"].get("bf16")
        table.add_row(
            f"[bold]{row['name']}[/bold]",
            "-" if tflops is None else f"{tflops:,.3g}" if tflops < 1 else f"{tflops:,.0f}",
            f"{row['memory_gb']:,.0f}",
            f"{row['bandwidth_gb_per_s']:,.0f}",
            "-" if row["power_w"] is None else f"{row['power_w']:,.0f}",
            *(("-", "-") if price is None else (f"{price['usd']:.2f}", f"{price['basis']}, {price['date']}")),
            row["title"],
        )
    console.print(table)
