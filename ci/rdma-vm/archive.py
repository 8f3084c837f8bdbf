"""Write what a Linux kernel unpacks into its first file system: a cpio archive, in the "newc" format.

The kernel takes several of them one behind the other, so that what seldom changes need not be packed again.

    python archive.py FOLDER ARCHIVE
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

ALIGNMENT = 4  # of headers and of contents
BLOCK = 512  # of the whole archive
END = "TRAILER!!!"


class Archive:
    """One archive under way. Everything in it belongs to root."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._written = 0
        self._entries = 0
        self._folders: set[str] = set()

    def add(self, path: Path, name: str) -> None:
        """A file, link or folder (without what is in it), by the name it is to have in there."""
        about = path.lstat()
        if stat.S_ISLNK(about.st_mode):
            content = os.fsencode(path.readlink())
        elif stat.S_ISREG(about.st_mode):
            content = path.read_bytes()
        elif stat.S_ISDIR(about.st_mode):
            content = b""
        else:
            return  # devices and sockets: the kernel makes its own
        self._parents(name)
        if stat.S_ISDIR(about.st_mode):
            self._folders.add(name)
        # Python compares the time of a source with what its compiled form says.
        self._entry(name, about.st_mode, int(about.st_mtime), content)

    def text(self, name: str, content: str, mode: int = 0o644) -> None:
        """A file that is nowhere yet."""
        self._parents(name)
        self._entry(name, stat.S_IFREG | mode, 0, content.encode())

    def end(self) -> None:
        """No more files: without this the kernel takes none."""
        self._entry(END, 0, 0, b"")
        self._write(b"\0" * (-self._written % BLOCK))

    def _parents(self, name: str) -> None:
        """The folders above: the kernel makes none by itself."""
        for parent in reversed(Path(name).parents[:-1]):
            if str(parent) not in self._folders:
                self._folders.add(str(parent))
                self._entry(str(parent), stat.S_IFDIR | 0o755, 0, b"")

    def _entry(self, name: str, mode: int, mtime: int, content: bytes) -> None:
        self._entries += 1
        encoded = os.fsencode(name) + b"\0"
        links = 2 if stat.S_ISDIR(mode) else 1
        fields = (self._entries, mode, 0, 0, links, mtime, len(content), 0, 0, 0, 0, len(encoded), 0)
        self._write(b"070701" + b"".join(b"%08X" % field for field in fields) + encoded)
        self._write(b"\0" * (-self._written % ALIGNMENT))
        self._write(content)
        self._write(b"\0" * (-self._written % ALIGNMENT))

    def _write(self, data: bytes) -> None:
        self._written += self._out.write(data)


def below(folder: Path) -> Iterator[Path]:
    """Yield everything in a folder, each folder before what is in it."""
    for here, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(here, name) for name in sorted(folders + files))


def pack(folder: Path, archive: Path) -> None:
    with archive.open("wb") as out:
        made = Archive(out)
        for path in below(folder):
            made.add(path, str(path.relative_to(folder)))
        made.end()


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
