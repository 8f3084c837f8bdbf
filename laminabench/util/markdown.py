"""Tables in Markdown, whatever is in their cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def table(titles: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield a table's lines; columns whose title begins with `>` are right-aligned."""
    yield row(title.removeprefix(">") for title in titles)
    yield row("--:" if title.startswith(">") else "---" for title in titles)
    yield from map(row, rows)


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(plain, cells))} |"


def plain(text: str) -> str:
    """Escape a foreign name so that it cannot end a cell or line, or begin markup."""
    escaped = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    return escaped.replace("<", "&lt;").replace("`", "'")
