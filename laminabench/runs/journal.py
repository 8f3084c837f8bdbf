"""A journal: an append-only file of records that is as good as its last whole one, however its writer ended.

Each record is its length, a CRC-32 of that and of its bytes, and the bytes (msgpack). It is handed to the
operating system and not forced to the disk: it survives the end of the process, kill -9 included, and not the
end of the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from laminabench.errors import UserError

MAGIC = b"laminabench journal\n"
SUFFIX = ".journal"
_FRAME = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


def beside(run: Path) -> Path:
    """The journal of the Run that goes there."""
    return run.with_name(run.name + SUFFIX)


def require_none(path: Path) -> None:
    """A UserError where a journal is that somebody may want to go on with."""
    if path.exists():
        raise UserError(
            "journal-exists",
            f"{path} is of a replay that was interrupted or still runs: go on with it (laminabench replay "
            f"--resume {path}), remove it, or choose another --out",
        )


class Journal:
    """Open for appending, by nobody else at the same time. `create` or `reopen` makes one."""

    def __init__(self, path: Path, file: IO[bytes], pack: Callable[[Any], bytes]) -> None:
        self.path = path
        self._file = file
        self._pack = pack

    @classmethod
    def create(cls, path: Path, header: Any) -> Journal:
        """A new one with its first record; a UserError if there is one already."""
        pack = importlib.import_module("msgpack").packb  # where it is missing, nothing is left behind
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("xb")
        except FileExistsError:
            require_none(path)
            raise
        except OSError as error:
            raise UserError("file-not-writable", f"cannot write {path}: {error.strerror}") from error
        journal = cls(path, file, pack)
        _lock(file, path)
        file.write(MAGIC)
        journal.append(header)
        journal.flush()
        return journal

    @classmethod
    def reopen(cls, path: Path) -> tuple[Journal, list[Any]]:
        """Go on with one that was left; its records, the first is the header. A torn tail is cut off."""
        msgpack = importlib.import_module("msgpack")
        try:
            file = path.open("r+b")
        except OSError as error:
            raise UserError("file-not-readable", f"cannot read {path}: {error.strerror}") from error
        try:
            _lock(file, path)
            data = file.read()
            if data[: len(MAGIC)] != MAGIC:
                raise UserError("journal-not-a-journal", f"{path} is not a journal of a replay")
            whole = len(MAGIC)
            records = []
            for body, end in _bodies(data, path):
                records.append(msgpack.unpackb(body, strict_map_key=False))
                whole = end
            if not records:
                raise _damaged(path, "its beginning is missing")
            file.truncate(whole)
            file.seek(whole)
        except BaseException:
            file.close()
            raise
        return cls(path, file, msgpack.packb), records

    def append(self, record: Any) -> None:
        """Add a record; `flush` hands it to the operating system."""
        body = self._pack(record)
        with self._writing():
            self._file.write(_FRAME.pack(len(body), _crc(body)) + body)

    def flush(self) -> None:
        """What was added is kept, however this process ends."""
        with self._writing():
            self._file.flush()

    def close(self) -> None:
        """Somebody else may take it up."""
        with contextlib.suppress(OSError):  # what flush could not write, this cannot either
            self._file.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                "file-not-writable",
                f"cannot write {self.path}: {error.strerror}; make room, then go on with: laminabench replay "
                f"--resume {self.path}",
            ) from error

    def remove(self) -> None:
        """It has done its service. Removed before it is let go: nobody can take it up in between."""
        self.path.unlink(missing_ok=True)
        self.close()


def _lock(file: IO[bytes], path: Path) -> None:
    """Ends with the process, whatever ends it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had it may have removed it meanwhile.
        gone = os.fstat(file.fileno()).st_nlink == 0
    except BlockingIOError:
        file.close()
        raise UserError(
            "journal-in-use", f"{path} is in use: the replay it is of still runs, or is being resumed"
        ) from None
    if gone:
        raise UserError("journal-gone", f"{path} is gone: the replay it was of has just ended")


def _bodies(data: bytes, path: Path) -> Iterator[tuple[bytes, int]]:
    """Each whole record, and where it ends. What is torn can only be the last: nothing follows it."""
    at = len(MAGIC)
    while at + _FRAME.size <= len(data):
        length, crc = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + length
        if end > len(data):
            return
        body = data[at + _FRAME.size : end]
        if _crc(body) != crc:
            if end == len(data):
                return
            raise _damaged(path, f"the record at byte {at} is not what was written")
        yield body, end
        at = end


def _crc(body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_LENGTH.pack(len(body))))


def _damaged(path: Path, what: str) -> UserError:
    return UserError("journal-damaged", f"{path} is damaged: {what}; remove it and replay again")
