"""Text and tables for a terminal; rich is imported late, as that takes longer than a replay."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from laminabench.render.format import plain
from laminabench.systems.includes import ERROR, INCLUDES, UNMEASURED

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from laminabench.render.model import Cell, Sheet, Tone

# In names of foreign Runs these could control the terminal, write to its clipboard, or turn text around.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
_CONTROLS |= {
    code: f"\\u{code:04x}"
    for code in (*range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
# Text that rich takes for markup, after any backslashes.
_TAG = re.compile(r"(\\*)(\[[a-z#/@][^[]*?\])")

# Lines of an answer that are not bold.
_PLAIN = (INCLUDES, ERROR, UNMEASURED)
_STYLES: dict[Tone, str] = {"": "", "good": "green", "bad": "red", "quiet": "dim", "strong": "bold"}


def visible(text: str) -> str:
    """Escape control characters except line ends and tabs."""
    return text.translate(_CONTROLS)


def literal(text: object) -> str:
    """Escape foreign text (names, paths, origins), whose brackets rich would take for markup."""
    escaped = _TAG.sub(r"\1\1\\\2", visible(str(text)))
    return escaped + "\\" if escaped.endswith("\\") and not escaped.endswith("\\\\") else escaped


def without_markup(text: str) -> str:
    """Return the text as rich prints it without colours."""

    def shown(match: re.Match[str]) -> str:
        slashes, tag = match.groups()
        return "\\" * (len(slashes) // 2) + (tag if len(slashes) % 2 else "")

    return _TAG.sub(shown, text)


def table(titles: Sequence[str], rows: Iterable[Iterable[str]] = (), **how: Any) -> Table:
    """Make a table of markup without lines; a title that begins with `>` aligns its column right."""
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, **how)
    for title in titles:
        right = title.startswith(">")
        # A narrow terminal breaks long words: cut, a deployment could not be read.
        name = literal(title.removeprefix(">"))
        drawn.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def print_answer(console: Console, lines: Sequence[str]) -> None:
    """Print an answer that can be read aloud, what it includes, and an empty line."""
    for text in map(literal, filter(None, lines)):
        console.print(text if text.startswith(_PLAIN) else f"[bold]{text}[/bold]", soft_wrap=True)
    if lines:
        console.print("", soft_wrap=True)


def print_sheet(console: Console, sheet: Sheet) -> None:
    """Print a table under its title, with its notes."""
    from rich.text import Text

    if sheet.title:
        console.print(f"[bold]{literal(sheet.title)}[/bold]", soft_wrap=True)
    drawn = table(sheet.columns)
    for row in sheet.rows:
        drawn.add_row(*(Text(visible(str(each)), _STYLES[_tone(each)]) for each in row))
    console.print(drawn)
    for note in sheet.notes:
        console.print(f"[dim]{literal(note)}[/dim]", soft_wrap=True)


def _tone(cell: str | Cell) -> Tone:
    return "" if isinstance(cell, str) else cell.tone


def print_facts(console: Console, facts: Mapping[str, object], indent: int = 0) -> None:
    """Print a nested dictionary as indented lines: the --json object in readable form."""
    width = max((len(key) for key in facts), default=0) + 2
    for key, value in facts.items():
        label = f"{'  ' * indent}{key.replace('_', ' '):{width}}"
        if isinstance(value, dict):
            console.print(label.rstrip())
            print_facts(console, value, indent + 1)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            console.print(label.rstrip())
            for row in value:
                print_facts(console, row, indent + 1)
                console.print()
        else:
            console.print(f"{label}{visible(plain(value))}", soft_wrap=True, markup=False)
