"""Both ends of channels in one process, as two processes would open them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lamina import fhbn

First = TypeVar("First")
Second = TypeVar("Second")


class Pair:
    """Two links, each to the other."""

    def __init__(self, ours: fhbn.Link, theirs: fhbn.Link, pool: ThreadPoolExecutor) -> None:
        self._ours, self._theirs, self._pool = ours, theirs, pool

    def open(
        self, first: Callable[[fhbn.Link], First], second: Callable[[fhbn.Link], Second]
    ) -> tuple[First, Second]:
        """What two calls make that need each other, such as a channel's sender and its receiver."""
        other = self._pool.submit(second, self._theirs)
        try:
            return first(self._ours), other.result()
        except BaseException:
            self._ours.close()  # else the other one may wait for it
            raise


@contextlib.contextmanager
def linked(timeout_s: float) -> Iterator[Pair]:
    """Meet oneself."""
    secret = fhbn.new_secret()
    with ThreadPoolExecutor(1) as pool, fhbn.Listener("one end", secret) as listener:
        other = pool.submit(listener.accept, timeout_s)
        with (
            fhbn.connect(listener.address, name="the other end", secret=secret, timeout_s=timeout_s) as ours,
            other.result() as theirs,
        ):
            yield Pair(ours, theirs, pool)
