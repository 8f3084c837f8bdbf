"""Tables in Markdown, whatever is in their cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def table(titles: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Line by line; aligned right under a title that begins with `>`."""
    yield row(title.removeprefix(">") for title in titles)
    yield row("--:" if title.startswith(">") else "---" for title in titles)
    yield from map(row, rows)


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(plain, cells))} |"


def plain(text: str) -> str:
    """Names are not ours: none of them shall end a cell, a line or begin markup."""
    kept = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    return kept.replace("<", "&lt;").replace("`", "'")
