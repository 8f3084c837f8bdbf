"""Tables as CSV: what `--csv` prints in place of text."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import IO, Any

from laminabench.render.terminal import without_markup

_THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?")


class CsvConsole:
    """A console that writes tables as CSV, with a blank line between two, and drops other text."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self._tables = stream, 0

    def print(self, *objects: Any, **how: Any) -> None:  # noqa: ARG002 - rich's signature
        from rich.table import Table

        for each in objects:
            if isinstance(each, Table):
                self._write(each)

    def print_values(self, data: Mapping[str, object]) -> None:
        """Write the result's values as rows of name and value, if no table was printed."""
        if not self._tables:
            rows = csv.writer(self._stream, lineterminator="\n")
            rows.writerows([("name", "value"), *_values("", data)])

    def _write(self, table: Any) -> None:
        self._stream.write("\n" if self._tables else "")
        self._tables += 1
        rows = csv.writer(self._stream, lineterminator="\n")
        rows.writerow([_plain(column.header) for column in table.columns])
        rows.writerows(
            zip(*([_plain(cell) for cell in column.cells] for column in table.columns), strict=True)
        )


def _values(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the dotted path and the value of each leaf of a JSON value."""
    if isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, each in items:
            yield from _values(f"{path}.{key}" if path else str(key), each)
    else:
        yield path, value


def _plain(cell: Any) -> str:
    """Return the cell without markup, and a number without separators."""
    text = cell.plain if hasattr(cell, "plain") else without_markup(str(cell))
    return text.replace(",", "") if _THOUSANDS.fullmatch(text) else text
