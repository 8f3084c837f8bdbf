"""A journal: an append-only file of records, valid up to its last complete one however the writer ended.

Each record is its length, a CRC-32 of that and of its bytes, and the bytes (msgpack). A flush hands it to
the operating system: it survives the end of the process, kill -9 included. Within SYNC_EVERY_S a background
thread forces it to the disk, so that it survives a crash of the machine.
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
# At most this much of a replay is lost if the machine crashes, and is replayed again.
SYNC_EVERY_S = 1.0
_FRAME = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
# Bytes to checksum in search of complete records after a damaged one.
_SEARCHED = 1 << 27


def journal_path(run: Path) -> Path:
    """Return the path of the journal of a Run."""
    return run.with_name(run.name + SUFFIX)


def require_none(path: Path) -> None:
    """Raise a UserError if there is a journal already, which can be resumed."""
    if path.exists():
        raise UserError(
            "journal-exists",
            f"{path} is of a replay that was interrupted or still runs: resume it (laminabench replay "
            f"--resume {shlex.quote(str(path))}), remove it, or choose another --out",
        )


@dataclass(frozen=True, slots=True)
class Damage:
    """The part of a journal that cannot be resumed from: each record depends on all before it."""

    path: Path
    at_byte: int
    size: int  # bytes from there to the end
    behind: int  # complete records after the damaged one
    copy: Path | None  # the copy of the damaged file; None if only its last record was torn

    def __str__(self) -> str:
        if self.copy is None:
            return f"the last record of {self.path} is not whole ({self.size:,} bytes) and was cut off"
        return (
            f"{self.path} is damaged at byte {self.at_byte:,}: the replay continues from the record before; "
            f"{self.behind:,} whole records behind it cannot be used, the file as it was is {self.copy}"
        )


class Journal:
    """A journal open for appending, locked against other writers; made by `create` or `reopen`."""

    def __init__(
        self, path: Path, file: IO[bytes], pack: Callable[[Any], bytes], damage: Damage | None = None
    ) -> None:
        self.path = path
        self.damage = damage
        self.size = file.tell()
        self.go_on = f"laminabench replay --resume {path}"  # how its owner is started again
        self._file = file
        self._former: list[IO[bytes]] = []  # that have been rewritten
        self._pack = pack
        self._unforced = False
        self._trouble: OSError | None = None
        self._closing = threading.Event()
        # In a thread of its own: an iteration of a live replay must not wait for a disk.
        self._forcing = threading.Thread(target=self._force_now_and_then, daemon=True, name="journal")
        self._forcing.start()

    @classmethod
    def create(cls, path: Path, header: Any, mode: int = 0o666) -> Journal:
        """Create a journal with its first record, on the disk; a UserError if there is one already."""
        # Before the file: if it is missing, nothing is created.
        pack = importlib.import_module("msgpack").packb
        try:
            make_folder(path.parent)
            with alone(path):
                require_none(path)
                file = _begun(path, _framed(pack(header)), mode)
        except OSError as error:
            raise UserError("file-not-writable", f"cannot write {path}: {error.strerror}") from error
        return cls(path, file, pack)

    @classmethod
    def reopen(cls, path: Path, *, only_torn: bool = False) -> tuple[Journal, list[Any]]:
        """Reopen a journal to resume; return it and its records, of which the first is the header.

        What follows the last usable record is cut off and reported in `damage`; if more than the last record
        is lost, the file is copied first, or with `only_torn` a UserError raised.
        """
        msgpack = importlib.import_module("msgpack")
        try:
            file = path.open("r+b")
        except OSError as error:
            raise UserError("file-not-readable", f"cannot read {path}: {error.strerror}") from error
        try:
            _lock(file, path)
            data = file.read()
            records, complete = [], len(MAGIC)
            if data[:complete] != MAGIC:
                raise UserError("journal-not-a-journal", f"{path} is not a journal of a replay")
            for body, end in _bodies(data, complete):
                try:
                    records.append(msgpack.unpackb(body, strict_map_key=False))
                except (ValueError, RecursionError) as error:
                    raise _damaged(path, f"the record at byte {complete:,} is not msgpack") from error
                complete = end
            if not records:
                raise _damaged(path, "its beginning is missing")
            if only_torn and _next_complete(data, complete) < len(data):
                raise _damaged(path, f"the record at byte {complete:,} is not what was written")
            damage = _cut(file, path, data, complete)
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
            self.size += self._file.write(_framed(self._pack(record)))

    def flush(self) -> None:
        """Write what was added, so that it survives this process, and soon a crash of the machine."""
        with self._writing():
            if self._trouble:
                raise self._trouble
            self._file.flush()
            self._unforced = True

    def rewrite(self, records: list[Any]) -> None:
        """Replace all records, the header too, by these: on the disk, and under the same lock."""
        with self._writing():
            mode = os.fstat(self._file.fileno()).st_mode & 0o777
            content = b"".join(_framed(self._pack(record)) for record in records)
            file = _begun(self.path, content, mode, new=False)
        self._former.append(self._file)
        self._file, self.size, self._unforced = file, file.tell(), False

    def close(self) -> None:
        """Close the file and release its lock, so that another process can reopen it."""
        self._closing.set()
        if self._forcing is not threading.current_thread():
            self._forcing.join()  # waits: for the disk, without which nothing is safe
        with contextlib.suppress(OSError, ValueError):  # what flush could not write, this cannot either
            self._file.flush()
            os.fdatasync(self._file.fileno())
        for file in (*self._former, self._file):
            with contextlib.suppress(OSError):
                file.close()

    def _force_now_and_then(self) -> None:
        while not self._closing.wait(SYNC_EVERY_S):
            while self._former:
                self._former.pop().close()
            if self._unforced:
                self._unforced = False
                try:
                    os.fdatasync(self._file.fileno())
                except OSError as error:
                    self._trouble = error  # the next flush raises it
                    return

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                "file-not-writable",
                f"cannot write {self.path}: {error.strerror}; make room, then resume with: {self.go_on}",
            ) from error

    def remove(self) -> None:
        """Remove the journal when the Run is on the disk under its name.

        It is removed before it is unlocked, so that no other process can reopen it in between.
        """
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            force(self.path.parent)  # else it might come back with the power
        self.close()


def _begun(path: Path, header: bytes, mode: int, *, new: bool = True) -> IO[bytes]:
    """Return the new file, locked, with its first record from the moment that it has its name."""
    temporary = path.with_name(partial(path.name))
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    file = os.fdopen(handle, "wb")
    try:
        _lock(file, path)
        file.write(MAGIC + header)
        file.flush()
        os.fsync(file.fileno())
        temporary.rename(path)
        force(path.parent)
    except BaseException:
        for name in (temporary, path) if new else (temporary,):
            with contextlib.suppress(OSError):
                name.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            file.close()
        raise
    return file


def _cut(file: IO[bytes], path: Path, data: bytes, complete: int) -> Damage | None:
    """Cut a journal after its last complete record; return the damage."""
    damage = None
    if complete < len(data):
        behind, at = 0, complete
        while (at := _next_complete(data, at)) < len(data):
            for _, end in _bodies(data, at):
                behind, at = behind + 1, end
        copy = _copy(path, data) if behind else None
        damage = Damage(path, complete, len(data) - complete, behind, copy)
    file.seek(complete)
    file.truncate()
    file.flush()
    os.fsync(file.fileno())
    return damage


def _copy(path: Path, data: bytes) -> Path:
    """Copy the journal next to the original, under an unused name."""
    number = 1
    while (copy := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    with copy.open("xb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            copy.unlink(missing_ok=True)
            raise
    force(copy.parent)
    return copy


def _lock(file: IO[bytes], path: Path) -> None:
    """Lock the file; the lock ends with the process, however that ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous owner may have removed it meanwhile.
        removed = os.fstat(file.fileno()).st_nlink == 0
    except BlockingIOError:
        file.close()
        raise UserError(
            "journal-in-use", f"{path} is in use: its replay or server still runs, or is being resumed"
        ) from None
    if removed:
        raise UserError("journal-gone", f"{path} was removed: its replay has just ended")


def _framed(body: bytes) -> bytes:
    return _FRAME.pack(len(body), _crc(body)) + body


def _bodies(data: bytes, at: int) -> Iterator[tuple[bytes, int]]:
    """Yield each complete record and where it ends, up to one that is not complete."""
    while (body := _body(data, at)) is not None:
        at += _FRAME.size + len(body)
        yield body, at


def _body(data: bytes, at: int) -> bytes | None:
    """Return the record that begins there; None if there is no complete one."""
    if at + _FRAME.size > len(data):
        return None
    length, crc = _FRAME.unpack_from(data, at)
    start = at + _FRAME.size
    if start + length > len(data):
        return None
    body = data[start : start + length]
    return body if _crc(body) == crc else None


def _next_complete(data: bytes, damaged: int) -> int:
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
