"""Messages and progress of a replay: stored as notes, and shown on stderr on request."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from laminabench.render.format import number
from laminabench.util.live_progress import Moment
from laminabench.util.progress import Listener

if TYPE_CHECKING:
    from laminabench.util.live_progress import Expected, Happening

# Seconds between updates of the line.
_EVERY_S = 0.2


class MessageLog(Listener):
    """A listener that stores notes; with `progress` prints them, and one line that is overwritten."""

    def __init__(self, *, progress: bool) -> None:
        self.notes: list[str] = []
        self._progress = progress
        self._shown_s = 0.0
        self._width = 0

    def note(self, sentence: str) -> None:
        if sentence in self.notes:
            return
        self.notes.append(sentence)
        if self._progress:
            self._clear()
            print(f"laminabench: {sentence}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def progress(self, what: str, unit: str = "bytes") -> Iterator[Callable[[int, int | None], None]]:
        def report(done: int, total: int | None) -> None:
            self._show(f"{what}: {done:,}{f' of {total:,}' if total else ''} {unit}")

        yield report
        self._clear()

    @contextlib.contextmanager
    def watch(self, expected: Expected) -> Iterator[Callable[[Happening], None]]:
        def report(happening: Happening) -> None:
            if isinstance(happening, Moment):
                rate, tbt = (number(each) for each in (happening.tokens_per_s, happening.tbt_ms_p99))
                done = f"{happening.finished:,} of {expected.requests:,} requests"
                self._show(f"{happening.at_s:,.1f} s: {done}, {rate} tokens/s, TBT p99 {tbt} ms")

        yield report
        self._clear()

    def _show(self, line: str) -> None:
        now_s = time.monotonic()
        if not self._progress or now_s - self._shown_s < _EVERY_S:
            return
        self._shown_s = now_s
        print(f"\r{line:{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def _clear(self) -> None:
        if self._width:
            print(f"\r{'':{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0
