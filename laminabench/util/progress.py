"""Listeners of a running use case: notes, details, progress. The command line prints them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laminabench.util.live_progress import Expected, Happening


class Listener:
    """A listener that ignores everything; subclasses override what they need."""

    def note(self, sentence: str) -> None:
        """Report something the user should know along with the result."""

    def detail(self, sentence: str) -> None:
        """Report something that only a curious user needs to know."""

    @contextlib.contextmanager
    def progress(self, what: str, unit: str = "bytes") -> Iterator[Callable[[int, int | None], None]]:
        """Return a context whose function reports (done, total), or is not called where there is no unit."""
        del what, unit
        yield lambda done, total: None

    @contextlib.contextmanager
    def watch(self, expected: Expected) -> Iterator[Callable[[Happening], None]]:
        """Return a context for a live replay, whose function reports what happens, a few times a second.

        A resumed replay first reports what happened before, up to a Moment of where it was.
        """
        del expected
        yield lambda happening: None


class Passing(Listener):
    """A listener that forwards everything; subclasses override what they change."""

    def __init__(self, to: Listener) -> None:
        self.to = to

    def note(self, sentence: str) -> None:
        self.to.note(sentence)

    def detail(self, sentence: str) -> None:
        self.to.detail(sentence)

    @contextlib.contextmanager
    def progress(self, what: str, unit: str = "bytes") -> Iterator[Callable[[int, int | None], None]]:
        with self.to.progress(what, unit) as progress:
            yield progress

    @contextlib.contextmanager
    def watch(self, expected: Expected) -> Iterator[Callable[[Happening], None]]:
        with self.to.watch(expected) as on_event:
            yield on_event


class Once(Passing):
    """A listener that forwards each note once: most replays repeat them."""

    def __init__(self, to: Listener) -> None:
        super().__init__(to)
        self._noted: set[str] = set()

    def note(self, sentence: str) -> None:
        if sentence not in self._noted:
            self._noted.add(sentence)
            self.to.note(sentence)


class Watching(Listener):
    """A listener that forwards only the progress of live replays."""

    def __init__(self, to: Listener) -> None:
        self.to = to

    @contextlib.contextmanager
    def watch(self, expected: Expected) -> Iterator[Callable[[Happening], None]]:
        with self.to.watch(expected) as on_event:
            yield on_event


SILENT = Listener()
