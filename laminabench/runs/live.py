"""The file next to a Run in progress, which shows other processes how far a live replay is.

Lines of JSON, each handed to the operating system as it is written: a Header, Moments and Faults as they
occur, and an End. It is optional: a replay continues if it cannot be written. It is removed when the Run is
complete. A file without an End whose process has ended is of a replay that was killed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO, Literal

import msgspec

from laminabench.runs.manifest import Backend
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError
from laminabench.util.live_progress import Count, FaultEvent, Moment

__all__ = ["End", "FaultEvent", "Header", "Line", "LiveFile", "Moment"]

FORMAT = "laminabench-live"
FORMAT_VERSION = 1
SUFFIX = ".live"


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="header"):
    """The replay, and the process that runs it."""

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    laminabench: str
    pid: int
    pid_started: int | None  # by the kernel's clock, as process ids are reused
    began: str  # ISO 8601, UTC
    command: tuple[str, ...]
    request: str  # as TOML
    trace: str
    requests: Count
    tokens: Count | None = None  # of all requests together, where that is certain
    system: str
    deployment: str
    model: str
    backend: Backend = "live"
    mode: str
    slo_tbt_ms: float
    slo_ttft_ms: float | None = None
    kv_capacity_tokens: Count | None = None
    workers: tuple[str, ...] = ()


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="end"):
    """The last line: how the replay ended."""

    at_s: float
    state: Literal["done", "interrupted", "failed"]
    why: str = ""
    resume: str | None = None  # the command that resumes it


Line = Header | Moment | FaultEvent | End
_LINE = msgspec.json.Decoder(Line)
_ENCODER = msgspec.json.Encoder()


def live_path(run: Path) -> Path:
    """Return the path of the live file of a Run."""
    return run.with_name(run.name + SUFFIX)


class LiveFile:
    """A live file open for writing. A line that cannot be written is the last; the replay continues."""

    def __init__(self, path: Path, header: Header) -> None:
        """Create the file, replacing one that was left behind; OSError or UserError if it cannot."""
        self.path = path
        with replacing(path) as temporary:
            self._file: IO[bytes] | None = temporary.open("wb")
            self.write(header)

    def write(self, line: Line) -> None:
        """Add a line, visible to readers at once."""
        if self._file is None:
            return
        try:
            self._file.write(_ENCODER.encode(line) + b"\n")
            self._file.flush()
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the file and leave it in place."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def remove(self) -> None:
        """Remove the file: the replay is over, and the Run has its results."""
        self.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def read_live(path: Path, offset: int = 0) -> tuple[list[Line], int]:
    """Return the lines from `offset` on, and the offset to continue from; an incomplete last line is left.

    If the file was replaced meanwhile, lines are from its beginning, and the first is a Header. Lines of an
    unknown kind (of a later version) are left out. OSError if there is no file.
    """
    with path.open("rb") as file:
        if offset:
            file.seek(offset - 1)
            offset = offset if file.read(1) == b"\n" else 0
        file.seek(offset)
        data = file.read()
    complete = data.rfind(b"\n") + 1
    lines = [line for text in data[:complete].split(b"\n") if (line := _parsed(text)) is not None]
    if (
        offset == 0
        and complete
        and not (lines and isinstance(lines[0], Header) and lines[0].format == FORMAT)
    ):
        raise UserError("live-not-live", f"{path} is not the file of a replay under way")
    return lines, offset + complete


def _parsed(text: bytes) -> Line | None:
    try:
        line: Line = _LINE.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return line


def alive(header: Header) -> bool:
    """Return whether the process that wrote the header still runs (and its id was not reused)."""
    if header.pid_started is not None:
        return started(header.pid) == header.pid_started
    try:
        os.kill(header.pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def started(pid: int) -> int | None:
    """Return when a process started, in ticks of the kernel's clock; None if it has ended or is unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program, in brackets, may have anything in it.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])
