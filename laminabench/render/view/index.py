"""The Runs of the folder as a table in memory: read once, and again where a file has changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from laminabench.render.format import short
from laminabench.render.view.facts import Facts, all_facts, brief, brief_facts
from laminabench.render.view.folder import Found, Scan, scan
from laminabench.runs.format import FORMAT, FORMAT_VERSION, MANIFEST
from laminabench.runs.read import read_manifest
from laminabench.util.errors import UserError
from laminabench.util.gc_paused import gc_paused

# The folder is looked through again when somebody asks, but no more than a fifth of the time.
_LEAST_S, _SHARE = 1.0, 5.0
# A manifest has some ten kilobytes; what is larger than this is none.
_MOST_BYTES = 64 << 20
# What reading one may come to: files go meanwhile, and documents are nested too deeply, or of no time.
_UNREADABLE = (OSError, ValueError, OverflowError, RecursionError)


@dataclass(slots=True)
class Row:
    """One Run as the table has it."""

    found: Found
    facts: Facts
    damage: str | None = None  # a sentence, where it cannot be read
    whole: bool = False  # all facts are there
    text: str | None = field(default=None, repr=False)  # that a search looks in

    @property
    def key(self) -> str:
        return self.found.key

    def has(self, words: Iterable[str]) -> bool:
        """Whether all these, in lower case, are in what is known of it."""
        if self.text is None:
            values = [self.damage or "", *map(short, self.facts.values())]
            self.text = "\n".join(values).lower()
        return all(word in self.text for word in words)


class Index:
    """All rows, for several threads at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.RLock()
        self._scan = Scan()
        self._rows: dict[str, Row] = {}
        self._next_s = 0.0
        self._version = 0

    @property
    def version(self) -> int:
        """Another number once a Run has come, changed or gone."""
        with self._lock:
            self.refreshed()
            return self._version

    def refreshed(self) -> Scan:
        """What is in the folder now, or was a moment ago."""
        with self._lock:
            began_s = time.monotonic()
            if began_s >= self._next_s:
                with gc_paused():
                    self._scan = scan(self.root)
                    runs = self._scan.found["run"]
                    rows = {key: row for key, found in runs.items() if (row := self._row(found)) is not None}
                # A run.json of something else is none of the Runs.
                self._scan.found["run"] = {key: row.found for key, row in rows.items()}
                self._version += rows != self._rows
                self._rows = rows
                took_s = time.monotonic() - began_s
                self._next_s = began_s + took_s + max(_LEAST_S, _SHARE * took_s)
            return self._scan

    def rows(self, *, whole: bool = False) -> list[Row]:
        """Every Run; with all its facts, if `whole`, which takes longer the first time."""
        with self._lock:
            self.refreshed()
            if whole:
                with gc_paused():
                    for row in self._rows.values():
                        _complete(row)
            return list(self._rows.values())

    def whole_row(self, key: str) -> Row | None:
        """One Run with all its facts."""
        with self._lock:
            row = self._rows.get(key)
            if row is not None:
                _complete(row)
            return row

    def columns(self) -> list[str]:
        """The names of all fields that any Run has."""
        with self._lock:
            return list(dict.fromkeys(name for row in self.rows(whole=True) for name in row.facts))

    def _row(self, found: Found) -> Row | None:
        """Of a folder with a run.json; None where that is something else's."""
        known = self._rows.get(found.key)
        if known is not None and known.found == found:
            return known
        return _read(found)


def _read(found: Found) -> Row | None:
    try:
        told = brief(_bytes(found))
        if told.format != FORMAT:
            return None
        if told.format_version <= FORMAT_VERSION:
            return Row(found, brief_facts(told, found.key, found.mtime_ns))
    except _UNREADABLE:
        pass
    return _damaged(found)


def _damaged(found: Found) -> Row | None:
    """As every command says it; None where it never was a Run."""
    try:
        read_manifest(found.path)
    except UserError as error:
        if error.code == "run-not-a-run":
            return None
        return Row(found, {"run": found.key}, str(error), whole=True)
    return Row(found, {"run": found.key}, f"{found.path} is damaged: it cannot be listed", whole=True)


def _complete(row: Row) -> None:
    if row.whole:
        return
    row.whole, row.text = True, None
    try:
        row.facts = all_facts(_bytes(row.found), row.facts)
    except _UNREADABLE:
        row.damage = f"{row.found.path / MANIFEST} is damaged, or has gone; replay it again"


def _bytes(found: Found) -> bytes:
    """The manifest, as large as it was said to be."""
    if found.size > _MOST_BYTES:
        raise OSError(f"{found.path} has a manifest of {found.size:,} bytes")
    handle = os.open(f"{found.path}/{MANIFEST}", os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return os.read(handle, found.size)
    finally:
        os.close(handle)
