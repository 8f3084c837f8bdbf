"""`laminabench traces fetch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from laminabench.cli.output import Output, reporting
from laminabench.traces import catalogue
from laminabench.traces.fetch import fetch, sha256_of

if TYPE_CHECKING:
    from rich.console import Console


@click.command("fetch")
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--all", "everything", is_flag=True, help="Every trace of the catalogue (several GB).")
@click.option(
    "--from",
    "base",
    metavar="URL_OR_DIR",
    help="A mirror or a folder holding the files by their upstream names.",
)
@reporting
def fetch_traces(names: tuple[str, ...], everything: bool, base: str | None, out: Output) -> None:
    """Download traces: resumes a cut download, checks the sha256, puts the file in place whole."""
    if everything == bool(names):
        raise click.UsageError("name the traces to fetch, or say --all")
    entries = [catalogue.find(name) for name in (catalogue.entries() if everything else names)]
    fetched: list[dict[str, object]] = []
    for entry in entries:
        with out.progress(entry.name) as progress:
            path = fetch(entry, base=base, progress=progress)
        digest = sha256_of(path)
        checked = entry.file.sha256 is not None
        if not checked:
            out.note(f"{entry.name}: the publisher gives no checksum; this copy's sha256 is {digest}")
        fetched.append(
            {
                "name": entry.name,
                "path": str(path),
                "bytes": path.stat().st_size,
                "sha256": digest,
                "sha256_checked": checked,
                "license": entry.license,
            }
        )

    def render(console: Console) -> None:
        for row in fetched:
            console.print(f"{row['name']}  {row['path']}  [dim]{row['license']}[/dim]", soft_wrap=True)

    out.result({"fetched": fetched}, render)
