"""What is in the folder: Runs, sweeps, plans, validations and replays under way, wherever they are in it.

An address names a thing by its key, which is looked up among what was found: no path is ever made of what a
browser sends, and links to elsewhere are not followed.
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
# What marks a folder as one of these. A Run is not looked into any further.
MARKS: dict[str, Kind] = {
    "run.json": "run",
    "sweep.json": "sweep",
    "plan.json": "plan",
    "validation.json": "validation",
}
MOST_DEEP = 8
MOST_FOLDERS = 50_000
# An environment of Python, by whatever name.
_ENVIRONMENT = "pyvenv.cfg"
_PASSED_OVER = {"__pycache__", "node_modules", "site-packages"}


@dataclass(frozen=True, slots=True)
class Found:
    """One thing in the folder."""

    kind: Kind
    key: str  # its path within the folder, as text, whatever its bytes are
    path: Path
    mtime_ns: int  # of what marks it
    size: int


@dataclass(slots=True)
class Scan:
    """Everything that there is at one time, by kind and key."""

    found: dict[Kind, dict[str, Found]] = field(
        default_factory=lambda: {kind: {} for kind in (*MARKS.values(), "live")}
    )
    cut: bool = False  # there are more folders than are looked into

    def add(self, each: Found) -> None:
        self.found[each.kind][each.key] = each


def scan(root: Path) -> Scan:
    """Look through the folder. Its marks are looked at and not opened."""
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
                with contextlib.suppress(FileNotFoundError):  # its Run came meanwhile
                    file = entry.stat(follow_symlinks=False)
                    result.add(Found("live", inner, Path(entry.path), file.st_mtime_ns, file.st_size))
    return result


def _marked(path: Path, key: str) -> Iterator[Found]:
    for name, kind in MARKS.items():
        try:
            found = os.lstat(f"{path}/{name}")
        except OSError:
            continue
        # A link could lead to what is none of this folder's.
        if stat.S_ISREG(found.st_mode):
            yield Found(kind, key, path, found.st_mtime_ns, found.st_size)
            if kind == "run":
                return


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    """What a folder has, but for what is hidden; nothing where it cannot be read."""
    try:
        with os.scandir(path) as entries:
            yield from (entry for entry in entries if not entry.name.startswith("."))
    except OSError:
        return


def _text(name: str) -> str:
    """A name of any bytes as text that an address and a form carry as it is: forms change ends of lines."""
    return printable(os.fsencode(name).decode("utf-8", "backslashreplace"))
