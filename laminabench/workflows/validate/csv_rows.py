"""Rows of a CSV file whose columns are declared as the fields of a Struct."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from laminabench.util import safe_parse

Cells = TypeVar("Cells", bound=msgspec.Struct)
Row = TypeVar("Row")
Whole = Annotated[int, msgspec.Meta(gt=0, lt=10**9)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]
Positive = Annotated[float, msgspec.Meta(ge=1e-6, lt=1e9)]  # ms, no less than a ns
# Requests of a load, or of a step, each of which is simulated.
MOST_REQUESTS = 1 << 18
AtOnce = Annotated[int, msgspec.Meta(gt=0, le=MOST_REQUESTS)]


class Refused(NamedTuple):
    """A row that is none, and why."""

    line: int
    why: str


def read(
    path: Path,
    cells: type[Cells],
    columns: Sequence[str],
    make: Callable[[Cells], Row],
    refused: list[Refused] | None = None,
) -> list[Row]:
    """Return the rows of a file; a ValueError says what is wrong, and in which line.

    Given a list for them, rows that are none are refused there, unless all are.
    """
    try:
        text = safe_parse.text(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no CSV file in UTF-8") from error
    return parse(text, str(path), cells, columns, make, refused)


def parse(
    text: str,
    where: str,
    cells: type[Cells],
    columns: Sequence[str],
    make: Callable[[Cells], Row],
    refused: list[Refused] | None = None,
) -> list[Row]:
    """Return the rows of a text that has these columns; an empty cell has its field's default."""
    reader = csv.DictReader(text.splitlines(), strict=True)
    rows: list[Row] = []
    try:
        if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
            raise ValueError(f"{where} line 1 lacks the columns {', '.join(missing)}")
        for given in reader:
            try:
                if None in given:
                    raise ValueError("it has more cells than line 1; quote commas in text")
                rows.append(make(_converted(given, cells)))
            except ValueError as error:
                if refused is None:
                    raise ValueError(f"{where} line {reader.line_num}: {error}") from error
                refused.append(Refused(reader.line_num, str(error)))
    except csv.Error as error:
        raise ValueError(f"{where} is no CSV file: {error}") from error
    if not rows and refused:
        raise ValueError(f"{where} line {refused[0].line}: {refused[0].why}")
    if not rows:
        raise ValueError(f"{where} has no rows; give one a line")
    return rows


def _converted(given: dict[str | Any, str | None], cells: type[Cells]) -> Cells:
    stripped = {name: (given.get(name) or "").strip() for name in cells.__struct_fields__}
    try:
        return msgspec.convert({name: cell for name, cell in stripped.items() if cell}, cells, strict=False)
    except msgspec.ValidationError as error:
        what, _, name = str(error).partition(" - at `$.")
        if name := name.rstrip("`"):
            raise ValueError(f"{name} is {stripped[name]!r}: {what}") from None
        raise ValueError(what) from None
