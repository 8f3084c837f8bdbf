"""`laminabench traces list`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from laminabench.cli.output import Output, reporting
from laminabench.present.terminal import literal
from laminabench.traces import catalogue
from laminabench.traces.profile import named_profile
from laminabench.traces.resolve import data_file, shared_trouble

if TYPE_CHECKING:
    from rich.console import Console


@click.command("list")
@reporting
def list_traces(out: Output) -> None:
    """The traces known by name, and what is here of each."""
    if trouble := shared_trouble():
        out.note(trouble)
    rows = [_row(entry) for entry in catalogue.entries().values()]
    imported = [
        {"name": name, "path": str(catalogue.imported_path(name))} for name in catalogue.imported_names()
    ]

    def render(console: Console) -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for title in ("trace", "here", "profile"):
            table.add_column(title)
        table.add_column("requests", justify="right")
        for title in ("licence", "what it is"):
            table.add_column(title)
        for row in rows:
            table.add_row(
                f"[bold]{literal(row['name'])}[/bold]",
                "file" if row["file"] else "-",
                str(row["profile"]),
                f"{row['requests']:,}",
                literal(row["license"]),
                literal(row["description"]),
            )
        for extra in imported:
            table.add_row(
                f"[bold]{literal(extra['name'])}[/bold]", "import", "-", "", "", literal(extra["path"])
            )
        console.print(table)

    out.result({"traces": rows, "imported": imported}, render)


def _row(entry: catalogue.Entry) -> dict[str, object]:
    profile = named_profile(entry.name)
    file = data_file(entry)
    return {
        "name": entry.name,
        "description": entry.description,
        "file": None if file is None else str(file),
        "profile": profile.method,
        "profile_note": profile.note,
        "requests": entry.published.requests if entry.published else profile.requests,
        "format": entry.format,
        "license": entry.license,
        "citation": entry.citation,
        "homepage": entry.homepage,
        "url": entry.file.url,
        "sha256": entry.file.sha256,
    }
