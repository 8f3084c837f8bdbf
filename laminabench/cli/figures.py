"""`laminabench figures`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from laminabench.cli.options import COUNT, FOLDER, option
from laminabench.cli.output import Output, reporting
from laminabench.render.terminal import literal, table

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.papers.paper import Written


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...|all]")
@option("-o --out folder", FOLDER, "Folder for NAME.csv, .svg, .png and PAPER.md.", "figures")
@click.option("--list", "listing", is_flag=True, help="Print the names and titles only.")
@click.option(
    "--results",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of stored measurements; default: results/ here or in the checkout.",
)
@option("--num-requests", COUNT, "Requests from the beginning of each trace, for a draft.")
@option("--jobs", COUNT, "Figures made at once; default: one per core.")
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
    """Recompute the papers' figures and tables, with their published values.

    \b
    laminabench figures fig10
    laminabench figures all --out figures
    """
    from laminabench.papers.context import Context, saved_results
    from laminabench.papers.entries import TITLES
    from laminabench.papers.page import write_page
    from laminabench.papers.paper import find, write
    from laminabench.util.parallel import spread

    chosen = find(names)
    if listing:
        titles = {name: TITLES[name] for name in chosen}
        lines = "\n".join(f"{name:18}{literal(title)}" for name, title in titles.items())
        out.result({"figures": titles}, lambda console: console.print(lines, soft_wrap=True))
        return
    context = Context(results or saved_results(), num_requests, offline)
    for name in context.fetch():
        out.note(f"{name} is not here: generated from its fitted profile")
    written: dict[int, Written] = {}
    with out.progress("drawing", unit="figures") as progress:
        for index, each in spread(write, [(name, folder) for name in chosen], context, jobs=jobs):
            written[index] = each
            progress(len(written), len(chosen))
    drawn = [written[index] for index in sorted(written)]
    page = folder / "PAPER.md"
    write_page(page, drawn)
    result = {
        "folder": str(folder),
        "page": str(page),
        "figures": [
            {
                "name": each.name,
                "title": each.title,
                "how": each.how,
                "claims": [
                    {**asdict(claim), "deviation": claim.deviation, "holds": claim.holds}
                    for claim in each.claims
                ],
            }
            for each in drawn
        ],
    }
    out.result(result, lambda console: _render(console, drawn, folder))


def _render(console: Console, written: list[Written], folder: Path) -> None:
    drawn = table(("figure", "claim", "published", "ours", "deviation"))
    for each in written:
        for place, claim in enumerate(each.claims):
            what, _, published, ours, deviation, *_ = claim.row()
            drawn.add_row(*map(literal, (each.name if place == 0 else "", what, published, ours, deviation)))
    console.print(drawn)
    console.print(
        f"[dim]{len(written)} figures in {literal(folder)}, and PAPER.md with where each number is from[/dim]"
    )
