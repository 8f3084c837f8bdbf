"""`laminabench models list|show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.facts import render_facts
from laminabench.cli.output import Output, reporting

if TYPE_CHECKING:
    from rich.console import Console


@click.group()
def models() -> None:
    """The models of the catalogue, and any Hugging Face config.json: shapes, bytes, ways to split."""


@models.command("list")
@reporting
def list_models(out: Output) -> None:
    """All models, a line each."""
    from laminabench.catalog.models import load_models

    rows = [found.describe() for found in load_models().values()]
    out.result({"models": rows}, lambda console: _render(console, rows))


@models.command()
@click.argument("name")
@reporting
def show(name: str, out: Output) -> None:
    """Every number of one model: NAME of the catalogue, or the path of a config.json or its folder."""
    from laminabench.catalog.find_model import modelled

    found = modelled(name)
    gemms = [gemm._asdict() for gemm in found.layer_gemms(1)]
    facts = {**found.describe(), "layer_gemms": gemms}
    out.result(facts, lambda console: render_facts(console, facts))


def _render(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    for title in ("layers", "hidden", "heads", "KV heads", "weights GB", "KV bytes/token", "head splits"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            f"[bold]{row['name']}[/bold]",
            f"{row['layers']}",
            f"{row['hidden']:,}",
            f"{row['heads']}",
            f"{row['kv_heads']}",
            f"{row['weight_gb']:,.1f}",
            f"{row['kv_bytes_per_token']:,}",
            " ".join(map(str, row["head_splits"])),
        )
    console.print(table)
