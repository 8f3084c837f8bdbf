"""The journal of a Run in progress: its request, the events so far, and how to resume."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from laminabench.requests.replay import FIELDS, ReplayRequest, absolute, acting, of_text, require_given
from laminabench.runs.format import MANIFEST, sha256_of
from laminabench.runs.journal import SUFFIX, Journal, journal_path, require_none
from laminabench.runs.replace import require_writable
from laminabench.traces.table import Trace
from laminabench.util.errors import Interrupted, Terminated, UserError
from laminabench.util.json import JsonObject
from laminabench.util.progress import SILENT, Listener
from laminabench.util.version import __version__

# 2: the request in its text form.
FORMAT_VERSION = 3
# What may be chosen anew when a replay is resumed: what is drawn of it, and not what is replayed.
FREE = ("plot", "timeline", "timeline_window", "metrics_port")


@dataclass(frozen=True, slots=True)
class NoJournal:
    """The journal of a replay that cannot be resumed."""

    events: Sequence[Any] = ()
    stored: ClassVar[bool] = False

    def open(self) -> None:
        """Do nothing."""

    @contextlib.contextmanager
    def until_written(self, listener: Listener) -> Iterator[None]:
        """Leave nothing behind."""
        del listener
        yield


NO_JOURNAL = NoJournal()


class _Trace(msgspec.Struct):
    name: str
    sha256: str | None
    requests: int


class _Header(msgspec.Struct):
    """The first record, whose CRC says only that it is as it was written."""

    format_version: int
    laminabench: str
    request: str
    replaces: str | None
    trace: _Trace


@dataclass
class ReplayJournal:
    """The journal of a live replay until its Run is written, and its events when reopened."""

    path: Path
    header: Mapping[str, Any]
    request: ReplayRequest
    events: Sequence[Any] = ()
    journal: Journal | None = field(default=None, repr=False)

    @classmethod
    def begun(cls, directory: Path, request: ReplayRequest, trace: Trace) -> ReplayJournal:
        """Create a journal next to the Run's folder; its file appears with the first event."""
        drawn = {
            name: str(Path(value).absolute()) if FIELDS[name].option.kind == "file" else value
            for name in FREE
            if (value := getattr(request, name)) is not None
        }
        stored = msgspec.structs.replace(request.stored(), **drawn)
        header = {
            "format_version": FORMAT_VERSION,
            "laminabench": __version__,
            "request": stored.text(),
            "replaces": _there(directory),
            "trace": _identity(trace),
        }
        path = journal_path(directory)
        require_writable(path)
        require_none(path)
        return cls(path, header, stored)

    @classmethod
    def reopened(cls, path: Path, listener: Listener = SILENT) -> ReplayJournal:
        """Open the journal of an interrupted replay, by its own name or the Run's."""
        file = path if path.name.endswith(SUFFIX) else journal_path(path)
        if not file.exists():
            if _there(file.with_suffix("")):
                raise UserError(
                    "replay-already-whole", f"{file.with_suffix('')} is whole: there is nothing to resume"
                )
            raise UserError("journal-missing", f"there is no {file}: nothing was interrupted there")
        journal, records = Journal.reopen(file)
        if journal.damage:
            listener.note(f"{journal.damage}; lost records are replayed again")
        try:
            header = msgspec.convert(records[0] if records else None, dict[str, Any])
            msgspec.convert(header, _Header)
            return cls._understood(journal, header, records[1:])
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            journal.close()
            raise UserError(
                "journal-damaged", f"{file} is damaged: {error!r}; remove it and replay again"
            ) from error
        except UserError:
            journal.close()
            raise

    @classmethod
    def _understood(cls, journal: Journal, header: Mapping[str, Any], events: list[Any]) -> ReplayJournal:
        version = (header["format_version"], header["laminabench"])
        if version != (FORMAT_VERSION, __version__):
            raise UserError(
                "journal-version",
                f"{journal.path} was written by laminabench {version[1]} (journal format {version[0]}) and "
                f"this is {__version__} ({FORMAT_VERSION}); resume it with that one, or remove it and replay "
                "again",
            )
        reopened = cls(journal.path, header, of_text(header["request"], str(journal.path)), events, journal)
        if _there(reopened.directory) not in (None, header["replaces"]):
            raise UserError(
                "run-exists",
                f"{reopened.directory} exists meanwhile and is left alone: move it away, or remove "
                f"{journal.path}",
            )
        return reopened

    @property
    def directory(self) -> Path:
        """The Run's folder."""
        return self.path.with_suffix("")

    @property
    def stored(self) -> bool:
        """Whether there is something to resume."""
        return self.journal is not None

    def open(self) -> Journal:
        """Yield the file to write to, which is created once there is something to resume."""
        if self.journal is None:
            self.journal = Journal.create(self.path, self.header)
        return self.journal

    def close(self) -> None:
        if self.journal:
            self.journal.close()

    @contextlib.contextmanager
    def until_written(self, listener: Listener) -> Iterator[None]:
        """Remove the journal once the block has written the Run; else say how to resume."""
        anew = acting(self.request, ("directory",))
        sentence = f"resume with: laminabench replay --resume {shlex.join([str(self.directory), *anew])}"
        try:
            yield
            if self.journal:
                self.journal.remove()
        except KeyboardInterrupt:
            if self.journal:
                raise Interrupted(sentence) from None
            raise
        except Terminated:
            raise Terminated(*[sentence] * bool(self.journal)) from None
        except Exception:
            if self.journal:
                listener.note(sentence)
            raise
        finally:
            self.close()

    def in_force(self, given: Mapping[str, Any]) -> ReplayRequest:
        """Return the interrupted request; raise a UserError if other options are given now."""
        for name, value in given.items():
            if name in FREE:
                continue
            was = str(self.directory.absolute()) if name == "directory" else getattr(self.request, name)
            now = str(Path(value).absolute()) if name == "directory" else value
            if (absolute(name, now) if isinstance(now, str) else now) != was:
                raise UserError(
                    "replay-resume-contradiction",
                    f"{FIELDS[name].flag} contradicts the interrupted replay, which has "
                    f"{_text(getattr(self.request, name))}: leave it out, the flags in "
                    f"{self.path} are in force",
                )
        require_given(self.request, str(self.path), given)
        anew = {name: value for name, value in given.items() if name in FREE}
        return msgspec.structs.replace(self.request, **anew, directory=str(self.directory))

    def require_same(self, trace: Trace) -> None:
        """Raise a UserError if the trace is not the one whose replay was interrupted."""
        was, now = self.header["trace"], _identity(trace)
        if was != now:
            raise UserError(
                "replay-trace-changed",
                f"the trace {now['name']} is another one than when it was interrupted: {now['requests']:,} "
                f"requests, sha256 {now['sha256'] or 'none'}, and {self.path} is of {was['requests']:,}, "
                f"{was['sha256'] or 'none'}",
            )


def _identity(trace: Trace) -> JsonObject:
    return {"name": trace.meta.name, "sha256": trace.meta.sha256, "requests": len(trace)}


def _there(directory: Path) -> str | None:
    """Return which Run is there, by its manifest's checksum; None if nothing is, and "" of anything else."""
    path = directory / MANIFEST
    if path.is_file():
        return sha256_of(path)
    return "" if os.path.lexists(directory) else None


def _text(value: Any) -> str:
    """Return a choice as text for a sentence."""
    if value in (None, (), False, True):
        return "it" if value is True else "none"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
