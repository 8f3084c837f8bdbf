"""An in-memory table of the folder's Runs, which rereads changed files only."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from laminabench.render.format import short
from laminabench.render.view.facts import Facts, all_facts, brief, brief_facts
from laminabench.render.view.folder import Entry, Scan, scan
from laminabench.runs.format import FORMAT, FORMAT_VERSION, MANIFEST
from laminabench.runs.read import read_manifest
from laminabench.util.errors import UserError
from laminabench.util.gc_paused import gc_paused

# The folder is scanned on request, but for no more than a fifth of the time.
_LEAST_S, _SHARE = 1.0, 5.0
# A manifest has some ten kilobytes; a larger file than this is not one.
_MOST_BYTES = 64 << 20
# Errors of reading a manifest that is missing, malformed, too deep or of an invalid time.
_UNREADABLE = (OSError, ValueError, OverflowError, RecursionError)


@dataclass(slots=True)
class Row:
    """One Run in the table."""

    entry: Entry
    facts: Facts
    damage: str | None = None  # a sentence, if it cannot be read
    complete: bool = False  # all facts are loaded
    text: str | None = field(default=None, repr=False)  # for searches

    @property
    def key(self) -> str:
        return self.entry.key

    def has(self, words: Iterable[str]) -> bool:
        """Return whether all words, in lower case, occur in what is known of the Run."""
        if self.text is None:
            values = [self.damage or "", *map(short, self.facts.values())]
            self.text = "\n".join(values).lower()
        return all(word in self.text for word in words)


class Index:
    """All rows; safe to use from several threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.RLock()
        self._scan = Scan()
        self._rows: dict[str, Row] = {}
        self._next_s = 0.0
        self._version = 0

    @property
    def version(self) -> int:
        """A number that changes whenever a Run is added, changed or removed."""
        with self._lock:
            self.refreshed()
            return self._version

    def refreshed(self) -> Scan:
        """Return the folder's scan, repeated if it is out of date."""
        with self._lock:
            began_s = time.monotonic()
            if began_s >= self._next_s:
                with gc_paused():
                    self._scan = scan(self.root)
                    runs = self._scan.entries["run"]
                    rows = {key: row for key, entry in runs.items() if (row := self._row(entry)) is not None}
                # Another program's run.json is not a Run.
                self._scan.entries["run"] = {key: row.entry for key, row in rows.items()}
                self._version += rows != self._rows
                self._rows = rows
                took_s = time.monotonic() - began_s
                self._next_s = began_s + took_s + max(_LEAST_S, _SHARE * took_s)
            return self._scan

    def rows(self, *, complete: bool = False) -> list[Row]:
        """Return every Run; `complete` loads all facts, which takes longer the first time."""
        with self._lock:
            self.refreshed()
            if complete:
                with gc_paused():
                    for row in self._rows.values():
                        _complete(row)
            return list(self._rows.values())

    def full_row(self, key: str) -> Row | None:
        """Return one Run with all facts."""
        with self._lock:
            row = self._rows.get(key)
            if row is not None:
                _complete(row)
            return row

    def columns(self) -> list[str]:
        """Return the names of all fields that any Run has."""
        with self._lock:
            return list(dict.fromkeys(name for row in self.rows(complete=True) for name in row.facts))

    def _row(self, entry: Entry) -> Row | None:
        """Return the row of a folder with a run.json; None if it belongs to another program."""
        known = self._rows.get(entry.key)
        if known is not None and known.entry == entry:
            return known
        return _read(entry)


def _read(entry: Entry) -> Row | None:
    try:
        known = brief(_bytes(entry))
        if known.format != FORMAT:
            return None
        if known.format_version <= FORMAT_VERSION:
            return Row(entry, brief_facts(known, entry.key, entry.mtime_ns))
    except _UNREADABLE:
        pass
    return _damaged(entry)


def _damaged(entry: Entry) -> Row | None:
    """Return the row of a damaged Run, with every command's sentence; None if it never was a Run."""
    try:
        read_manifest(entry.path)
    except UserError as error:
        if error.code == "run-not-a-run":
            return None
        return Row(entry, {"run": entry.key}, str(error), complete=True)
    return Row(entry, {"run": entry.key}, f"{entry.path} is damaged: it cannot be listed", complete=True)


def _complete(row: Row) -> None:
    if row.complete:
        return
    row.complete, row.text = True, None
    try:
        row.facts = all_facts(_bytes(row.entry), row.facts)
    except _UNREADABLE:
        row.damage = f"{row.entry.path / MANIFEST} is damaged or missing; replay it again"


def _bytes(entry: Entry) -> bytes:
    """Read a manifest, up to the size at the time of the scan."""
    if entry.size > _MOST_BYTES:
        raise OSError(f"{entry.path} has a manifest of {entry.size:,} bytes")
    handle = os.open(f"{entry.path}/{MANIFEST}", os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return os.read(handle, entry.size)
    finally:
        os.close(handle)
