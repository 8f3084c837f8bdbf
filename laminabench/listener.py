"""Who a use case reports to while it works: notes, details, progress. The command line prints them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class Listener:
    """Hears nothing. What wants to know more overrides it."""

    def note(self, sentence: str) -> None:
        """Something the user should know beside the result."""

    def detail(self, sentence: str) -> None:
        """Something only a curious user wants to know."""

    @contextlib.contextmanager
    def progress(self, what: str, unit: str = "bytes") -> Iterator[Callable[[int, int | None], None]]:
        """While the block works; it reports (done, total)."""
        del what, unit
        yield lambda done, total: None

    @contextlib.contextmanager
    def rates(self, what: str, unit: str, rate: str) -> Iterator[Callable[[int, int, int], None]]:
        """As `progress`, with how many of something else were made, shown as so many a second."""
        del what, unit, rate
        yield lambda done, total, made: None


class Once(Listener):
    """Passes each note on the first time only: what is true of one replay is of most."""

    def __init__(self, to: Listener) -> None:
        self.to = to
        self._noted: set[str] = set()

    def note(self, sentence: str) -> None:
        if sentence not in self._noted:
            self._noted.add(sentence)
            self.to.note(sentence)

    def detail(self, sentence: str) -> None:
        self.to.detail(sentence)

    @contextlib.contextmanager
    def progress(self, what: str, unit: str = "bytes") -> Iterator[Callable[[int, int | None], None]]:
        with self.to.progress(what, unit) as progress:
            yield progress

    @contextlib.contextmanager
    def rates(self, what: str, unit: str, rate: str) -> Iterator[Callable[[int, int, int], None]]:
        with self.to.rates(what, unit, rate) as progress:
            yield progress


SILENT = Listener()
