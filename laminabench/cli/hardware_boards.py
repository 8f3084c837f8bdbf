"""`laminabench hardware boards`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from laminabench.cli.output import Output, reporting
from laminabench.present.terminal import literal

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.catalog.boards import Board

# What the others of the catalogue vary one thing of.
ORIGINAL = "h2m2"


@click.command()
@click.argument("name", required=False, metavar="[NAME|FILE.toml]")
@reporting
def boards(name: str | None, out: Output) -> None:
    """Boards with two memories, a line each; of one, every parameter and where it is from."""
    from laminabench.catalog.boards import NAMES, board

    if name is None:
        rows = [_summary(board(each), board(ORIGINAL)) for each in NAMES]
        out.result({"boards": rows}, lambda console: _render_all(console, rows))
        return
    found = board(name)
    parameters = found.assumptions()
    facts = {"name": found.name, "title": found.title, "parameters": parameters}
    out.result(facts, lambda console: _render_one(console, found.title, parameters))


def _summary(found: Board, original: Board) -> dict[str, object]:
    """All numbers, and which of them are not the original's."""
    facts, usual = found.describe(), original.describe()
    varied = {
        key: value for key, value in facts.items() if value != usual[key] and key not in ("name", "title")
    }
    return {**facts, "varied": varied}


def _render_all(console: Console, rows: list[dict[str, object]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("board")
    for title in ("HBM GB", "GB/s", "chips", "LPDDR GB", "GB/s", "chips"):
        table.add_column(title, justify="right")
    table.add_column("what it is")
    for row in rows:
        numbers = [
            f"{row[f'{side}_{name}']:,g}"
            for side in ("hbm", "lpddr")
            for name in ("capacity_gb", "bandwidth_gb_per_s", "chips")
        ]
        table.add_row(f"[bold]{literal(row['name'])}[/bold]", *numbers, literal(row["title"]))
    console.print(table)


def _render_one(console: Console, title: str, parameters: list[dict[str, object]]) -> None:
    from rich.table import Table

    console.print(f"[bold]{literal(title)}[/bold]", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in ("parameter", "value", "", "kind", "source"):
        table.add_column(name, justify="right" if name == "value" else "left")
    for row in parameters:
        table.add_row(*(literal(_said(row[key])) for key in ("name", "value", "unit", "kind", "source")))
    console.print(table)


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,g}" if isinstance(value, int | float) else str(value)
