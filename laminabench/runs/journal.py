"""A journal: an append-only file of records that is as good as its last whole one, however its writer ended.

Each record is its length, a CRC-32 of that and of its bytes, and the bytes (msgpack). A flush hands it to
the operating system: it survives the end of the process, kill -9 included. Within SYNC_EVERY_S it is forced
to the disk, beside who writes, and survives the end of the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import shlex
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from laminabench.util.atomic import alone, force, make_folder, partial
from laminabench.util.errors import UserError

MAGIC = b"laminabench journal\n"
SUFFIX = ".journal"
# Of a replay's last moments so much may be lost with the machine, and is replayed again.
SYNC_EVERY_S = 1.0
_FRAME = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
# How much is summed up in search of whole records behind a damaged one.
_SEARCHED = 1 << 27


def beside(run: Path) -> Path:
    """The journal of the Run that goes there."""
    return run.with_name(run.name + SUFFIX)


def require_none(path: Path) -> None:
    """A UserError where a journal is that somebody may want to go on with."""
    if path.exists():
        raise UserError(
            "journal-exists",
            f"{path} is of a replay that was interrupted or still runs: go on with it (laminabench replay "
            f"--resume {shlex.quote(str(path))}), remove it, or choose another --out",
        )


@dataclass(frozen=True, slots=True)
class Damage:
    """The part of a journal that cannot be resumed from: each record depends on all before it."""

    path: Path
    at_byte: int
    size: int  # bytes from there to the end
    behind: int  # whole records behind the damaged one
    kept: Path | None  # where the file is as it was, if there is more to it than a torn end

    def __str__(self) -> str:
        if self.kept is None:
            return f"the last record of {self.path} is not whole ({self.size:,} bytes) and was cut off"
        return (
            f"{self.path} is damaged at byte {self.at_byte:,}: it is gone on with from the record before; "
            f"{self.behind:,} whole records behind it cannot be used, the file as it was is {self.kept}"
        )


class Journal:
    """Open for appending, by nobody else at the same time. `create` or `reopen` makes one."""

    def __init__(
        self, path: Path, file: IO[bytes], pack: Callable[[Any], bytes], damage: Damage | None = None
    ) -> None:
        self.path = path
        self.damage = damage
        self._file = file
        self._pack = pack
        self._unforced = False
        self._trouble: OSError | None = None
        self._closing = threading.Event()
        # Beside who writes: an iteration of a live replay must not wait for a disk.
        self._forcing = threading.Thread(target=self._force_now_and_then, daemon=True, name="journal")
        self._forcing.start()

    @classmethod
    def create(cls, path: Path, header: Any) -> Journal:
        """A new one with its first record, on the disk; a UserError if there is one already."""
        pack = importlib.import_module("msgpack").packb  # where it is missing, nothing is left behind
        try:
            make_folder(path.parent)
            with alone(path):
                require_none(path)
                file = _begun(path, _framed(pack(header)))
        except OSError as error:
            raise UserError("file-not-writable", f"cannot write {path}: {error.strerror}") from error
        return cls(path, file, pack)

    @classmethod
    def reopen(cls, path: Path) -> tuple[Journal, list[Any]]:
        """Go on with one that was left; its records, the first is the header.

        What is behind the last that can be gone on with is cut off, and `damage` says so; of more than a torn
        end a copy is kept.
        """
        msgpack = importlib.import_module("msgpack")
        try:
            file = path.open("r+b")
        except OSError as error:
            raise UserError("file-not-readable", f"cannot read {path}: {error.strerror}") from error
        try:
            _lock(file, path)
            data = file.read()
            records, whole = [], len(MAGIC)
            for body, end in _bodies(data, whole):
                try:
                    records.append(msgpack.unpackb(body, strict_map_key=False))
                except (ValueError, RecursionError) as error:
                    raise _damaged(path, f"the record at byte {whole:,} is not msgpack") from error
                whole = end
            if not records:
                if data[: len(MAGIC)] != MAGIC:
                    raise UserError("journal-not-a-journal", f"{path} is not a journal of a replay")
                raise _damaged(path, "its beginning is missing")
            damage = _cut(file, path, data, whole)
        except OSError as error:
            file.close()
            raise UserError("file-not-writable", f"cannot write {path}: {error.strerror}") from error
        except BaseException:
            file.close()
            raise
        return cls(path, file, msgpack.packb, damage), records

    def append(self, record: Any) -> None:
        """Add a record; `flush` hands it to the operating system."""
        with self._writing():
            self._file.write(_framed(self._pack(record)))

    def flush(self) -> None:
        """Write what was added, so that it survives this process, and soon a crash of the machine."""
        with self._writing():
            if self._trouble:
                raise self._trouble
            self._file.flush()
            self._unforced = True

    def close(self) -> None:
        """Somebody else may take it up."""
        self._closing.set()
        if self._forcing is not threading.current_thread():
            self._forcing.join()  # waits: for the disk, without which nothing is safe
        with contextlib.suppress(OSError, ValueError):  # what flush could not write, this cannot either
            self._file.flush()
            os.fdatasync(self._file.fileno())
        with contextlib.suppress(OSError):
            self._file.close()

    def _force_now_and_then(self) -> None:
        while not self._closing.wait(SYNC_EVERY_S):
            if self._unforced:
                self._unforced = False
                try:
                    os.fdatasync(self._file.fileno())
                except OSError as error:
                    self._trouble = error  # the next flush tells
                    return

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
        """It has done its service: the Run is on the disk, and its name.

        Removed before it is let go: nobody can take it up in between.
        """
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            force(self.path.parent)  # else it might come back with the power
        self.close()


def _begun(path: Path, header: bytes) -> IO[bytes]:
    """The file, locked, with its first record from the moment that it has its name."""
    temporary = path.with_name(partial(path.name))
    file = temporary.open("xb")
    try:
        _lock(file, path)
        file.write(MAGIC + header)
        file.flush()
        os.fsync(file.fileno())
        temporary.rename(path)
        force(path.parent)
    except BaseException:
        for name in (temporary, path):
            with contextlib.suppress(OSError):
                name.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            file.close()
        raise
    return file


def _cut(file: IO[bytes], path: Path, data: bytes, whole: int) -> Damage | None:
    """Leave what can be gone on with, and say what is lost."""
    damage = None
    if whole < len(data) or data[: len(MAGIC)] != MAGIC:
        behind, at = 0, whole
        while (at := _next_whole(data, at)) < len(data):
            for _, end in _bodies(data, at):
                behind, at = behind + 1, end
        kept = _copy(path, data) if behind else None
        if whole < len(data):
            damage = Damage(path, whole, len(data) - whole, behind, kept)
    if data[: len(MAGIC)] != MAGIC:  # its records are all that matters
        file.seek(0)
        file.write(MAGIC)
    file.seek(whole)
    file.truncate()
    file.flush()
    os.fsync(file.fileno())
    return damage


def _copy(path: Path, data: bytes) -> Path:
    """Beside it, under a name that nothing has."""
    number = 1
    while (kept := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    with kept.open("xb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            kept.unlink(missing_ok=True)
            raise
    force(kept.parent)
    return kept


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


def _framed(body: bytes) -> bytes:
    return _FRAME.pack(len(body), _crc(body)) + body


def _bodies(data: bytes, at: int) -> Iterator[tuple[bytes, int]]:
    """Yield each complete record and where it ends, up to one that is not complete."""
    while (body := _body(data, at)) is not None:
        at += _FRAME.size + len(body)
        yield body, at


def _body(data: bytes, at: int) -> bytes | None:
    """The record that begins there, if one does."""
    if at + _FRAME.size > len(data):
        return None
    length, crc = _FRAME.unpack_from(data, at)
    start = at + _FRAME.size
    if start + length > len(data):
        return None
    body = data[start : start + length]
    return body if _crc(body) == crc else None


def _next_whole(data: bytes, damaged: int) -> int:
    """Return where the next complete record begins after a damaged one, or the end."""
    searched = 0
    for at in range(damaged + 1, len(data) - _FRAME.size):
        length = _LENGTH.unpack_from(data, at)[0]
        if at + _FRAME.size + length > len(data):
            continue
        if _body(data, at) is not None:
            return at
        searched += length
        if searched > _SEARCHED:
            break
    return len(data)


def _crc(body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_LENGTH.pack(len(body))))


def _damaged(path: Path, what: str) -> UserError:
    return UserError("journal-damaged", f"{path} is damaged: {what}; remove it and replay again")
