"""Tables of text, which a terminal and a Markdown file both show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from laminabench.atomic import replacing
from laminabench.markdown import plain, row
from laminabench.present.terminal import literal

if TYPE_CHECKING:
    from rich.console import Console


class Sheet(NamedTuple):
    """A table whose first columns are words and the rest numbers, and what is to be said under it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    words: int = 1  # columns that are words
    notes: tuple[str, ...] = ()


def print_sheets(console: Console, sheets: Sequence[Sheet], failed: Sequence[str]) -> None:
    """Each as a table with its notes; then every gate that failed, a line each."""
    from rich.table import Table

    for place, sheet in enumerate(sheets):
        if place:
            console.print()
        console.print(f"[bold]{literal(sheet.title)}[/bold]", soft_wrap=True)
        table = Table(box=None, pad_edge=False)
        for at, title in enumerate(sheet.columns):
            table.add_column(literal(title), justify="left" if at < sheet.words else "right")
        for cells in sheet.rows:
            table.add_row(*map(literal, cells))
        console.print(table)
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
        yield f"### {plain(sheet.title)}"
        yield ""
        yield row(sheet.columns)
        yield row(["---" if at < sheet.words else "--:" for at in range(len(sheet.columns))])
        yield from map(row, sheet.rows)
        if sheet.notes:
            yield ""
            yield from (f"- {plain(note)}" for note in sheet.notes)
    said = [*map(plain, notes), *(f"**failed** {plain(line)}" for line in failed)]
    if said:
        yield ""
        yield from (f"- {line}" for line in said)
