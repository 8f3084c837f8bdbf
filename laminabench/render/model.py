"""The data that back-ends render: tables are built once, as sheets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from laminabench.util import markdown

Tone = Literal["", "good", "bad", "quiet", "strong"]


class Cell(NamedTuple):
    """A table cell with a value, a tone or further text."""

    text: str
    value: float | None = None  # the number behind the text, for programs that read a page
    tone: Tone = ""
    more: str = ""  # follows the text and matters less, such as an interval

    def __str__(self) -> str:
        return f"{self.text} {self.more}" if self.more else self.text


Row = Sequence[str | Cell]


class Sheet(NamedTuple):
    """A table with notes under it; `>` before a title aligns its column right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def to_markdown(self) -> list[str]:
        """Return heading, table and notes, line by line."""
        title = [f"### {markdown.plain(self.title)}", ""] if self.title else []
        notes = ["", *(f"- {markdown.plain(note)}" for note in self.notes)] if self.notes else []
        return [*title, *markdown.table(self.columns, (map(str, row) for row in self.rows)), *notes]


def verdict(*, missed: object) -> Cell:
    """Return whether a target is met."""
    return Cell("missed", tone="bad") if missed else Cell("met", tone="good")


def strong(row: Iterable[str]) -> list[Cell]:
    """Return a row that stands out."""
    return [Cell(each, tone="strong") for each in row]


def listed(names: Sequence[str]) -> str:
    """Join names as a sentence does."""
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]
