"""Detection and opening of a user's file: what it is, how it is compressed and in which encoding."""

from __future__ import annotations

import codecs
import io
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa

from laminabench.traces.catalogue import sha256_of
from laminabench.traces.formats.limits import Limits
from laminabench.traces.formats.wording import Doubtful, label_of
from laminabench.util.errors import UserError

# Longer than any request: what has no line end for this long is no text file.
MAX_LINE = 1 << 24
HEAD = 1 << 16
_NO_ROWS = 1000

# By magic bytes, not by suffix: downloads are renamed, and some are compressed by the server.
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
_REFUSED = {b"PK\x03\x04": "a zip archive", b"\xfd7zXZ\x00": "an xz file", b"7z\xbc\xaf": "a 7-zip archive"}
# UTF-32 first: its little-endian mark begins with UTF-16's.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}

# What a trace file's name may end in: these say how it is written, not what it is called.
SUFFIXES = (".csv", ".jsonl", ".json", ".parquet")
PACKED = (".gz", ".zst", ".bz2")


def plain_name(path: Path) -> str:
    """Return the file's name without the suffixes that say how it is written: v1.2 of v1.2.csv.gz."""
    name = path.name
    for known in (PACKED, SUFFIXES):
        suffix = Path(name).suffix
        if suffix.lower() in known:
            name = name.removesuffix(suffix)
    return name


def _unreadable(label: str, reason: str | None) -> UserError:
    return UserError("trace-unreadable", f"{label}: cannot be read: {reason}")


class Source(msgspec.Struct, frozen=True):
    """A readable file, and how to get UTF-8 out of it."""

    path: Path
    label: str
    compression: str | None
    mark: bytes
    encoding: str
    head: bytes
    bytes: int = 0
    limits: Limits = Limits()

    @classmethod
    def of(cls, path: Path, limits: Limits | None = None) -> Source:
        label = label_of(path)
        try:
            status = path.stat()
            mode = status.st_mode
            if stat.S_ISDIR(mode):
                raise UserError(
                    "trace-not-a-file", f"{label}: is a folder, not a trace file; name a file in it"
                )
            if not stat.S_ISREG(mode):
                raise UserError(
                    "trace-not-a-file",
                    f"{label}: is a pipe or a device; a trace is read twice, so save it to a file",
                )
            with path.open("rb") as file:
                magic = file.read(8)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = getattr(error, "strerror", None) or "not a file name"
            raise _unreadable(label, reason) from error
        for start, kind in _REFUSED.items():
            if magic.startswith(start):
                raise UserError("trace-archive", f"{label}: is {kind}; unpack it and name the file inside")
        compression = next((kind for start, kind in _COMPRESSIONS.items() if magic.startswith(start)), None)
        size, limits = status.st_size, limits or Limits()
        packed = cls(path, label, compression, b"", "utf-8", b"", size, limits)
        with _Content(packed) as content:
            head = io.BufferedReader(content).read(HEAD)
        mark = next((mark for mark in _MARKS if head.startswith(mark)), b"")
        if not head[len(mark) :].strip():
            raise UserError("trace-empty", f"{label}: the file is empty; a trace needs at least one row")
        head = head[len(mark) :]
        return cls(path, label, compression, mark, _MARKS.get(mark, "utf-8"), head, size, limits)

    def sha256(self) -> str:
        try:
            return sha256_of(self.path)
        except OSError as error:
            raise _unreadable(self.label, error.strerror) from error

    def text(self, newline: Literal["", "\n"] = "") -> io.TextIOWrapper:
        """Return text with unchanged line ends: any, or only line feeds (a lone CR is a space in JSON).

        What is not UTF-8 comes as surrogates: see `wording.unreadable`.
        """
        errors = "surrogateescape" if self.encoding == "utf-8" else "strict"
        return io.TextIOWrapper(
            io.BufferedReader(_Content(self), 1 << 16), self.encoding, errors=errors, newline=newline
        )

    def lines(self, newline: Literal["", "\n"] = "") -> Iterator[str]:
        with self.text(newline) as text:
            number = 0
            try:
                while line := text.readline(MAX_LINE):
                    number += 1
                    if len(line) == MAX_LINE:
                        raise UserError(
                            "trace-not-text",
                            f"{self.label}:{number}: longer than {MAX_LINE >> 20} MiB; not a trace",
                        )
                    yield line
            except UnicodeDecodeError as error:
                raise UserError(
                    "trace-not-text",
                    f"{self.label}: not valid {self.encoding.upper()} after line {number}; save it as UTF-8",
                ) from error


class _Content(io.RawIOBase):
    """The decompressed bytes of a source after its byte-order mark; trouble with them is one sentence."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._unpacked = 0
        try:
            file = source.path.open("rb")
        except OSError as error:
            raise _unreadable(source.label, error.strerror) from error
        self._file = pa.CompressedInputStream(file, source.compression) if source.compression else file
        self.read(len(source.mark))

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        source = self._source
        try:
            data = bytes(self._file.read(size))
            self._unpacked += len(data)
            source.limits.require_bytes(
                self._unpacked, source.bytes if source.compression else None, source.label
            )
            return data
        except OSError as error:
            if compression := self._source.compression:
                raise UserError(
                    "trace-damaged",
                    f"{self._source.label}: the {compression} data are damaged or cut short; fetch it again",
                ) from error
            raise _unreadable(self._source.label, error.strerror or "input error") from error

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()


class CleanUtf8(io.RawIOBase):
    """UTF-8 for Arrow, which checks no column it leaves out; Doubtful at a NUL or a byte that is none."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._content = _Content(source)
        self._decoder = codecs.getincrementaldecoder(source.encoding)()
        self._transcode = source.encoding != "utf-8"
        self.newlines = 0
        self.last = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while True:
            # Half, as UTF-8 may need 3 bytes where UTF-16 needs 2, and Arrow accepts no more than requested.
            data = self._content.read(size // 2 if self._transcode else size)
            clean = self._clean(data)
            if clean or not data:
                self.newlines += clean.count(b"\n")
                # A header, a blank line and the like are no rows.
                self._source.limits.require_rows(self.newlines - _NO_ROWS, self._source.label)
                self.last = clean[-1:] or self.last
                return clean

    def _clean(self, data: bytes) -> bytes:
        try:
            if self._transcode:
                data = self._decoder.decode(data, final=not data).encode()
            elif not data.isascii() or self._decoder.getstate()[0]:
                self._decoder.decode(data, final=not data)
        except UnicodeError as error:
            raise Doubtful("not UTF-8") from error
        if b"\0" in data:
            raise Doubtful("NUL")
        return data

    def close(self) -> None:
        if not self.closed:
            self._content.close()
        super().close()
