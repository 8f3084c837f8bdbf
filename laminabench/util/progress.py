"""Who a use case reports to while it works: notes, details, progress. The command line prints them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laminabench.util.live_progress import Expected, Happening


class Listener:
    """Hears nothing. What wants to know more overrides it."""

    def note(self, sentence: str) -> None:
        """Something the user should know beside the result."""

    def detail(self, sentence: str) -> None:
        """Something only a curious user wants to know."""

    @contextlib.contextmanager
    def progress(self, what: str, unit: str = "bytes") -> Iterator[Callable[[int, int | None], None]]:
        """While the block works; it reports (done, total), or nothing where there is no unit."""
        del what, unit
        yield lambda done, total: None

    @contextlib.contextmanager
    def watch(self, expected: Expected) -> Iterator[Callable[[Happening], None]]:
        """While the clock of a live replay runs; it tells what happens, a few times a second.

        Of one that was resumed, what happened before is told first, up to a Moment of where it was.
        """
        del expected
        yield lambda happening: None


class Passing(Listener):
    """Passes on all it hears. What does something with a part of it overrides that."""

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
        with self.to.watch(expected) as told:
            yield told


class Once(Passing):
    """Passes each note on the first time only: what is true of one replay is of most."""

    def __init__(self, to: Listener) -> None:
        super().__init__(to)
        self._noted: set[str] = set()

    def note(self, sentence: str) -> None:
        if sentence not in self._noted:
            self._noted.add(sentence)
            self.to.note(sentence)


class Watching(Listener):
    """Passes on how live replays go, and nothing that they say beside it."""

    def __init__(self, to: Listener) -> None:
        self.to = to

    @contextlib.contextmanager
    def watch(self, expected: Expected) -> Iterator[Callable[[Happening], None]]:
        with self.to.watch(expected) as told:
            yield told


SILENT = Listener()
