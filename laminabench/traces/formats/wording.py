"""Wording of problems in a file: short, on one line, whatever its bytes are."""

from __future__ import annotations

from pathlib import Path

HINT = "; fix the row or pass --skip-bad"


class Doubtful(Exception):  # noqa: N818 - no error yet: the careful path decides that
    """The fast path met something it must not judge."""


class BadValueError(Exception):
    """Problem of one row, to follow `file:line: `."""


class Written(str):
    """A number as it was written, or a CSV field, which may be anything."""

    __slots__ = ()


def printable(text: str) -> str:
    """Return the text with everything that could break the line, or the terminal, written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def label_of(path: Path) -> str:
    text = printable(str(path))
    return text if len(text) <= 90 else f"…{text[-89:]}"


def shown(value: object) -> str:
    """Return a value as a person would recognise it in the file."""
    if isinstance(value, Written) and value.lstrip("+-").replace(".", "", 1).isdecimal():
        return _short(value)
    if value == "":
        return "empty"
    if isinstance(value, str):
        return f'"{_short(printable(value[:60]))}"'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return _short(printable(str(value)))


def name_of(column: str) -> str:
    """Return a column's name, short enough for a sentence."""
    return _short(printable(column))


def _short(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:29]}…"


def unreadable(line: str) -> str | None:
    """Return why a line of `Source.text` cannot be text, if so."""
    if "\0" in line:
        return "holds a NUL byte (UTF-16 without a mark? save it as UTF-8)"
    try:
        line.encode()
    except UnicodeEncodeError:
        return "holds bytes that are not UTF-8"
    return None
