"""A scan of the folder: Runs, sweeps, plans, validations and live replays at any depth.

An address names an entry by its key, which is looked up in the scan: no path is ever built from a browser's
input, and symbolic links are not followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from laminabench.runs.live import SUFFIX
from laminabench.traces.formats.wording import printable

Kind = Literal["run", "sweep", "plan", "validation", "live"]
# The marker file of each kind. Folders inside a Run are not scanned.
MARKS: dict[str, Kind] = {
    "run.json": "run",
    "sweep.json": "sweep",
    "plan.json": "plan",
    "validation.json": "validation",
}
MOST_DEEP = 8
MOST_FOLDERS = 50_000
# Marks a Python environment of any name.
_ENVIRONMENT = "pyvenv.cfg"
_PASSED_OVER = {"__pycache__", "node_modules", "site-packages"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One result in the folder."""

    kind: Kind
    key: str  # path within the folder, as printable text
    path: Path
    mtime_ns: int  # of its marker
    size: int


@dataclass(slots=True)
class Scan:
    """All results in the folder at one time, by kind and key."""

    entries: dict[Kind, dict[str, Entry]] = field(
        default_factory=lambda: {kind: {} for kind in (*MARKS.values(), "live")}
    )
    cut: bool = False  # some folders were not scanned

    def add(self, each: Entry) -> None:
        self.entries[each.kind][each.key] = each


def scan(root: Path) -> Scan:
    """Scan the folder for marker files, without opening them."""
    result = Scan()
    left = MOST_FOLDERS
    # The root may be a Run itself.
    waiting = [(root, "", 0)]
    while waiting:
        path, key, depth = waiting.pop()
        marked = list(_marked(path, key or _text(path.resolve().name)))
        for each in marked:
            result.add(each)
        if any(each.kind == "run" for each in marked):
            continue
        if left == 0:
            result.cut = True
            break
        left -= 1
        if os.path.lexists(f"{path}/{_ENVIRONMENT}"):
            continue
        for entry in _entries(path):
            inner = f"{key}/{_text(entry.name)}" if key else _text(entry.name)
            if entry.is_dir(follow_symlinks=False):
                if depth < MOST_DEEP and entry.name not in _PASSED_OVER:
                    waiting.append((Path(entry.path), inner, depth + 1))
            elif entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):  # replaced by its Run meanwhile
                    file = entry.stat(follow_symlinks=False)
                    result.add(Entry("live", inner, Path(entry.path), file.st_mtime_ns, file.st_size))
    return result


def _marked(path: Path, key: str) -> Iterator[Entry]:
    for name, kind in MARKS.items():
        try:
            status = os.lstat(f"{path}/{name}")
        except OSError:
            continue
        # A link could lead out of this folder.
        if stat.S_ISREG(status.st_mode):
            yield Entry(kind, key, path, status.st_mtime_ns, status.st_size)
            if kind == "run":
                return


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    """Yield a folder's entries except hidden ones; nothing if it cannot be read."""
    try:
        with os.scandir(path) as entries:
            yield from (entry for entry in entries if not entry.name.startswith("."))
    except OSError:
        return


def _text(name: str) -> str:
    """Return a file name as text that survives addresses and forms, which change line ends."""
    return printable(os.fsencode(name).decode("utf-8", "backslashreplace"))
