"""`laminabench costs list|show|fit`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.facts import render_facts
from laminabench.cli.output import Output, reporting

if TYPE_CHECKING:
    from rich.console import Console


@click.group()
def costs() -> None:
    """The cost sets of the modelled cluster: every coefficient with its source and its error."""


@costs.command("list")
@reporting
def list_costs(out: Output) -> None:
    """The sets that --costs takes."""
    from laminabench.catalog.cost_file import COST_SETS, DEFAULT_COSTS, load_costs

    rows = [{**load_costs(name).describe(), "default": name == DEFAULT_COSTS} for name in COST_SETS]

    def render(console: Console) -> None:
        for row in rows:
            mark = "  (default)" if row["default"] else ""
            console.print(f"[bold]{row['name']}[/bold]{mark}  {row['title']}", soft_wrap=True)
            console.print(
                f"  measured on {', '.join(row['measured'])}; borrowed by {', '.join(row['borrowed'])}"
            )

    out.result({"costs": rows}, render)


@costs.command()
@click.argument("name")
@click.option("--device", "device_name", default="h100", show_default=True, help="Whose coefficients.")
@click.option(
    "--tp", type=click.IntRange(min=1), default=2, show_default=True, help="Tensor-parallel degree."
)
@click.option("--dtype", default="bf16", show_default=True)
@reporting
def show(name: str, device_name: str, tp: int, dtype: str, out: Output) -> None:
    """Every coefficient of a set (NAME or a TOML file) for one device: value, kind, source, error."""
    from laminabench.catalog.cost_file import load_costs
    from laminabench.catalog.hardware import device

    facts = {
        "set": name,
        "device": device_name,
        "terms": load_costs(name).provenance(device(device_name), tp, dtype),
    }
    out.result(facts, lambda console: render_facts(console, facts))


@costs.command()
@click.option("--set", "set_name", required=True, help="Which set to fit: vllm-0.14 or vidur-2024.")
@click.option(
    "--from",
    "folder",
    type=click.Path(path_type=Path),
    help="Folder of the measurement files; $LAMINABENCH_PROFILES by default.",
)
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the set here (.toml).",
)
@reporting
def fit(set_name: str, folder: Path | None, target: Path | None, out: Output) -> None:
    """Fit a cost set to published measurements and print its errors, held-out shapes included."""
    from laminabench.catalog.cost_file import write_costs
    from laminabench.catalog.fit_costs import error_rows
    from laminabench.catalog.fit_costs import fit as fit_set

    named = folder or (
        Path(os.environ["LAMINABENCH_PROFILES"]) if os.environ.get("LAMINABENCH_PROFILES") else None
    )
    if named is None:
        raise click.UsageError(
            "say --from FOLDER (or set LAMINABENCH_PROFILES): where the measurement files are"
        )
    costs = fit_set(named, set_name)
    rows = error_rows(costs)
    if target is not None:
        write_costs(costs, target, f"Fitted by `laminabench costs fit --set {set_name}`; do not edit.")
        out.note(f"wrote {target}")
    out.result({"set": set_name, "errors": rows}, lambda console: _render_errors(console, rows))


def _render_errors(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    # Not every term has every kind of error.
    titles = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(box=None, pad_edge=False, title="mean absolute errors in percent", title_justify="left")
    for title in titles:
        table.add_column(title.replace("_", " "))
    for row in rows:
        values = (row.get(title, "") for title in titles)
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in values))
    console.print(table)
