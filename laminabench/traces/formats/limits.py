"""Limits on how much of a trace file is read: a small file must not fill the memory."""

from __future__ import annotations

import msgspec

from laminabench.util.errors import UserError

# The longest published trace, a week of Azure's, has 44 million rows.
MOST_ROWS = 200_000_000
# A header of so many columns is no table of requests.
MOST_COLUMNS = 10_000
# Text of a row, with prefix blocks or a conversation.
_ROW_BYTES = 1024
# Real CSV compresses 10-fold, JSON lines 30-fold. Files that unpack to less than this are not checked.
_TIMES = 200
_FREE_BYTES = 64 << 20


class Limits(msgspec.Struct, frozen=True):
    """Limits for trace files: by default beyond real traces; with `rows`, at most that many rows."""

    rows: int | None = None

    @property
    def most_rows(self) -> int:
        return MOST_ROWS if self.rows is None else self.rows

    def require_rows(self, rows: int, label: str) -> None:
        """Raise a UserError where there are more."""
        if rows > self.most_rows:
            raise UserError(
                "trace-too-many-rows",
                f"{label}: has more than {self.most_rows:,} rows; if that is so: --max-rows N",
            )

    def require_bytes(self, unpacked: int, packed: int | None, label: str) -> None:
        """Check the bytes unpacked from a file; `packed` is the file's size where it is compressed."""
        if unpacked > max(_FREE_BYTES, self.most_rows * _ROW_BYTES):
            raise UserError(
                "trace-too-large",
                f"{label}: has more than {unpacked:,} bytes of text; if its rows are that long: --max-rows N",
            )
        if self.rows is None and packed is not None and unpacked > max(_FREE_BYTES, _TIMES * packed):
            raise UserError(
                "trace-packed-too-well",
                f"{label}: its {packed:,} bytes unpack to over {unpacked:,}, as no real trace's do; if it "
                "is one, say how many rows it has: --max-rows N",
            )
