"""What is known of replays under way: their files are read on from where they were left."""

from __future__ import annotations

import math
import shlex
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from laminabench.render.view.folder import Found
from laminabench.render.view.index import Index
from laminabench.runs.live import SUFFIX, End, FaultEvent, Header, Moment, alive, read_live
from laminabench.util.errors import UserError

State = Literal["running", "done", "interrupted", "failed", "killed"]

# Four moments a second for a week come to less.
_MOST_BYTES = 1 << 30


@dataclass(slots=True)
class UnderWay:
    """One replay as far as its file tells."""

    key: str  # of the file
    path: Path
    header: Header
    moments: list[Moment] = field(default_factory=list)
    faults: list[FaultEvent] = field(default_factory=list)
    end: End | None = None

    @property
    def run_key(self) -> str:
        """Where its Run will be."""
        return self.key.removesuffix(SUFFIX)

    @property
    def resume(self) -> str:
        """The command to go on with from where this explorer was started, if there is a journal."""
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
        """How much of it is behind it: of tokens, where it is certain how many there will be."""
        last, tokens = self.last, self.header.tokens
        if last is None or not last.requests:
            return None
        if tokens:
            tokens = round(tokens * (1 - last.failed / last.requests))
        return min(1.0, last.tokens / tokens if tokens else (last.finished + last.failed) / last.requests)

    @property
    def left_s(self) -> float | None:
        """At the rate so far; None before anything is done."""
        last, share = self.last, self.share
        left_s = math.inf if last is None or not share else last.at_s * (1 - share) / share
        return left_s if math.isfinite(left_s) else None


class Watched:
    """The replays of a folder, each read on when somebody asks for it."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[UnderWay, int, int]] = {}  # which file, and how far

    def all(self) -> list[UnderWay]:
        """Those that can be read, the newest first."""
        found = self._index.refreshed().found["live"].values()
        there = [self._on(each) for each in sorted(found, key=lambda each: -each.mtime_ns)]
        return [each for each in there if each is not None]

    def one(self, key: str) -> UnderWay | None:
        """None where its file is gone, or cannot be read."""
        found = self._index.refreshed().found["live"].get(key)
        return None if found is None else self._on(found)

    def _on(self, found: Found) -> UnderWay | None:
        if found.size > _MOST_BYTES:
            return None
        with self._lock:
            known, inode, offset = self._read.get(found.path, (None, 0, 0))
            try:
                # Another in its place may have the end of a line where that one had.
                same, inode = inode, found.path.stat().st_ino
                lines, offset = read_live(found.path, offset if inode == same else 0)
            except (OSError, UserError):
                self._read.pop(found.path, None)
                return None
            for line in lines:
                if isinstance(line, Header):
                    known = UnderWay(found.key, found.path, line)
                elif known is None:
                    continue
                elif isinstance(line, Moment):
                    known.moments.append(line)
                elif isinstance(line, FaultEvent):
                    known.faults.append(line)
                else:
                    known.end = line
            if known is not None:
                self._read[found.path] = known, inode, offset
            return known
