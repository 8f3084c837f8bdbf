"""A model of power cuts: a disk on which only what was forced to it is certain to survive.

A file has its content of when it was last forced, and any subset of the writes since; a folder has its names
of then, and a prefix of the changes since.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from experiments.disk import Operation


class _File:
    def __init__(self) -> None:
        self.certain = b""
        self.since: list[tuple[int, bytes | None]] = []  # None: cut to that size

    def force(self) -> None:
        self.certain, self.since = self.content(self.since), []

    def content(self, changes: Sequence[tuple[int, bytes | None]]) -> bytes:
        content = bytearray(self.certain)
        for at, data in changes:
            size = at if data is None else max(len(content), at + len(data))
            content = content[:size].ljust(size, b"\0")  # gaps are zeros
            if data is not None:
                content[at : at + len(data)] = data
        return bytes(content)

    def after(self, rng: random.Random) -> bytes:
        chance = rng.choice((0.0, 0.5, 1.0))
        return self.content([change for change in self.since if rng.random() < chance])


class _Folder:
    def __init__(self) -> None:
        self.names: dict[str, _File | _Folder] = {}
        self.certain: dict[str, _File | _Folder] = {}
        self.since: list[dict[str, _File | _Folder]] = []  # the names after each change

    def changed(self) -> None:
        self.since.append(dict(self.names))

    def force(self) -> None:
        self.certain, self.since = dict(self.names), []

    def after(self, rng: random.Random) -> dict[str, _File | _Folder]:
        return rng.choice([self.certain, *self.since, *self.since[-1:] * 3])


class Disk:
    """A disk to which operations are done one by one, and whose power can be cut at any time."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._top = _Folder()

    def do(self, operation: Operation) -> None:
        what, path, other, number, data = operation
        if what == "mark" or path.endswith(" (deleted)"):
            return
        if path == self._root:
            self._top.force()
            return
        folder, name = self._place(path)
        entry = folder.names.get(name)
        if what in {"create", "mkdir"}:
            folder.names[name] = _File() if what == "create" else _Folder()
        elif what == "unlink":
            del folder.names[name]
        elif what in {"rename", "exchange"}:
            there, called = self._place(other)
            assert there is folder, "no name goes from one folder to another"
            if what == "exchange":
                folder.names[name], folder.names[called] = folder.names[called], folder.names[name]
            else:
                folder.names[called] = folder.names.pop(name)
        elif what == "sync":
            assert entry is not None
            entry.force()
            return
        else:
            assert isinstance(entry, _File)
            entry.since.append((number, data if what == "write" else None))
            return
        folder.changed()

    def cut(self, rng: random.Random, into: Path) -> None:
        """Write the content of the disk after a power cut into a folder."""
        self._write(self._top, rng, into)

    def _write(self, folder: _Folder, rng: random.Random, into: Path) -> None:
        into.mkdir(exist_ok=True)
        for name, entry in folder.after(rng).items():
            if isinstance(entry, _File):
                (into / name).write_bytes(entry.after(rng))
            else:
                self._write(entry, rng, into / name)

    def _place(self, path: str) -> tuple[_Folder, str]:
        *parts, name = Path(path).relative_to(self._root).parts
        folder = self._top
        for part in parts:
            below = folder.names[part]
            assert isinstance(below, _Folder)
            folder = below
        return folder, name
