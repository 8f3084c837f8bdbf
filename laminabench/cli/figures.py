"""`laminabench figures`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.ranges import COUNT
from laminabench.present.terminal import literal

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.figures.claims import Claim
    from laminabench.figures.paper import Written


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...|all]")
@click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("figures"),
    show_default=True,
    help="Where NAME.csv, .svg, .png and PAPER.md go.",
)
@click.option("--list", "listing", is_flag=True, help="Print the names and titles only.")
@click.option(
    "--results",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Kept measurements; results/ here or in the checkout by default.",
)
@click.option("--num-requests", type=COUNT, help="The beginning of each trace only: a draft.")
@click.option("--jobs", type=COUNT, help="Figures made at once; as many as there are cores by default.")
@click.option("--offline", is_flag=True, help="Never download; use what is here, else the profile.")
@reporting
def figures(
    names: tuple[str, ...],
    folder: Path,
    listing: bool,
    results: Path | None,
    num_requests: int | None,
    jobs: int | None,
    offline: bool,
    out: Output,
) -> None:
    """The papers' figures and tables: what they show, made anew here, beside what they say.

    \b
    laminabench figures fig10
    laminabench figures all --out figures
    """
    from laminabench.figures.ground import Ground, kept_results
    from laminabench.figures.paper import TITLES, find, write
    from laminabench.figures.paper_page import write_page
    from laminabench.spread import spread

    chosen = find(names)
    if listing:
        titles = {name: TITLES[name] for name in chosen}
        out.result({"figures": titles}, lambda console: _list(console, titles))
        return
    ground = Ground(results or kept_results(), num_requests, offline)
    for name in ground.fetch():
        out.note(f"{name} is not here: generated from its fitted profile")
    written: dict[int, Written] = {}
    with out.progress("drawing", unit="figures") as progress:
        for index, each in spread(write, [(name, folder) for name in chosen], ground, jobs=jobs):
            written[index] = each
            progress(len(written), len(chosen))
    whole = [written[index] for index in sorted(written)]
    page = folder / "PAPER.md"
    write_page(page, whole)
    result = {
        "folder": str(folder),
        "page": str(page),
        "figures": [
            {
                "name": each.name,
                "title": each.title,
                "how": each.how,
                "claims": [_claim(claim) for claim in each.claims],
            }
            for each in whole
        ],
    }
    out.result(result, lambda console: _render(console, whole, folder))


def _claim(claim: Claim) -> dict[str, object]:
    return {**asdict(claim), "deviation": claim.deviation, "holds": claim.holds}


def _list(console: Console, titles: dict[str, str]) -> None:
    for name, title in titles.items():
        console.print(f"{name:18}{literal(title)}")


def _render(console: Console, written: list[Written], folder: Path) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("figure", "claim", "published", "ours", "deviation"):
        table.add_column(column, overflow="fold")
    for each in written:
        for place, claim in enumerate(each.claims):
            what, _, published, ours, deviation, _, _ = claim.row()
            table.add_row(*map(literal, (each.name if place == 0 else "", what, published, ours, deviation)))
    console.print(table)
    console.print(
        f"[dim]{len(written)} figures in {literal(folder)}, and PAPER.md with where each number is from[/dim]"
    )
