"""The state of live replays: each file is read on from where it was left."""

from __future__ import annotations

import math
import shlex
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from laminabench.render.view.folder import Entry
from laminabench.render.view.index import Index
from laminabench.runs.live import SUFFIX, End, FaultEvent, Header, Moment, alive, read_live
from laminabench.util.errors import UserError

State = Literal["running", "done", "interrupted", "failed", "killed"]

# Larger than four moments a second for a week.
_MOST_BYTES = 1 << 30


@dataclass(slots=True)
class UnderWay:
    """The state of one live replay, from its file."""

    key: str  # the file's
    path: Path
    header: Header
    moments: list[Moment] = field(default_factory=list)
    faults: list[FaultEvent] = field(default_factory=list)
    end: End | None = None

    @property
    def run_key(self) -> str:
        """The key of its future Run."""
        return self.key.removesuffix(SUFFIX)

    @property
    def resume(self) -> str:
        """The command that resumes it from the explorer's working directory, if there is a journal."""
        return f"laminabench replay --resume {shlex.quote(str(self.path).removesuffix(SUFFIX))}"

    @property
    def state(self) -> State:
        if self.end is not None:
            return self.end.state
        return "running" if alive(self.header) else "killed"

    @property
    def last(self) -> Moment | None:
        return self.moments[-1] if self.moments else None

    @property
    def share(self) -> float | None:
        """The completed share: of tokens if their total is known, else of requests."""
        last, tokens = self.last, self.header.tokens
        if last is None or not last.requests:
            return None
        if tokens:
            tokens = round(tokens * (1 - last.failed / last.requests))
        return min(1.0, last.tokens / tokens if tokens else (last.finished + last.failed) / last.requests)

    @property
    def left_s(self) -> float | None:
        """The time left at the rate so far; None before anything is done."""
        last, share = self.last, self.share
        left_s = math.inf if last is None or not share else last.at_s * (1 - share) / share
        return left_s if math.isfinite(left_s) else None


class Watched:
    """The live replays of a folder, each read on when requested."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[UnderWay, int, int]] = {}  # with inode and offset

    def all(self) -> list[UnderWay]:
        """Return the readable replays, newest first."""
        entries = self._index.refreshed().entries["live"].values()
        there = [self._on(each) for each in sorted(entries, key=lambda each: -each.mtime_ns)]
        return [each for each in there if each is not None]

    def one(self, key: str) -> UnderWay | None:
        """Return a replay; None if its file is missing or unreadable."""
        entry = self._index.refreshed().entries["live"].get(key)
        return None if entry is None else self._on(entry)

    def _on(self, entry: Entry) -> UnderWay | None:
        if entry.size > _MOST_BYTES:
            return None
        with self._lock:
            known, inode, offset = self._read.get(entry.path, (None, 0, 0))
            try:
                # A new file in its place must be read from its beginning.
                same, inode = inode, entry.path.stat().st_ino
                lines, offset = read_live(entry.path, offset if inode == same else 0)
            except (OSError, UserError):
                self._read.pop(entry.path, None)
                return None
            for line in lines:
                if isinstance(line, Header):
                    known = UnderWay(entry.key, entry.path, line)
                elif known is None:
                    continue
                elif isinstance(line, Moment):
                    known.moments.append(line)
                elif isinstance(line, FaultEvent):
                    known.faults.append(line)
                else:
                    known.end = line
            if known is not None:
                self._read[entry.path] = known, inode, offset
            return known
