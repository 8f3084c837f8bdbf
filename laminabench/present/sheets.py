"""Tables of text, which a terminal and a Markdown file both show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from laminabench import markdown
from laminabench.atomic import replacing
from laminabench.present.terminal import literal, table

if TYPE_CHECKING:
    from rich.console import Console


class Sheet(NamedTuple):
    """A table, with `>` before the titles of numbers, and what is to be said under it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()


def print_sheets(console: Console, sheets: Sequence[Sheet], failed: Sequence[str]) -> None:
    """Each as a table with its notes; then every gate that failed, a line each."""
    for place, sheet in enumerate(sheets):
        if place:
            console.print()
        console.print(f"[bold]{literal(sheet.title)}[/bold]", soft_wrap=True)
        console.print(table(sheet.columns, (map(literal, cells) for cells in sheet.rows)))
        for note in sheet.notes:
            console.print(f"[dim]{literal(note)}[/dim]", soft_wrap=True)
    for line in failed:
        console.print(f"[red]failed[/red] {literal(line)}", soft_wrap=True)


def write_markdown(path: Path, sheets: Sequence[Sheet], notes: Sequence[str], failed: Sequence[str]) -> None:
    """The same with the notes, for a comment or a page."""
    with replacing(path) as temporary:
        temporary.write_text("\n".join(_lines(sheets, notes, failed)) + "\n", encoding="utf-8")


def _lines(sheets: Sequence[Sheet], notes: Sequence[str], failed: Sequence[str]) -> Iterator[str]:
    for place, sheet in enumerate(sheets):
        if place:
            yield ""
        yield f"### {markdown.plain(sheet.title)}"
        yield ""
        yield from markdown.table(sheet.columns, sheet.rows)
        if sheet.notes:
            yield ""
            yield from (f"- {markdown.plain(note)}" for note in sheet.notes)
    said = [*map(markdown.plain, notes), *(f"**failed** {markdown.plain(line)}" for line in failed)]
    if said:
        yield ""
        yield from (f"- {line}" for line in said)
