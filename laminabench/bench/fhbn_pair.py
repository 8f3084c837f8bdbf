"""Both ends of channels in one process, as two processes would open them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from lamina import fhbn


class _Closable(Protocol):
    def close(self) -> None: ...


First = TypeVar("First", bound=_Closable)
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
        with contextlib.ExitStack() as failing:
            failing.callback(self._ours.close)  # else the other one may wait for it
            made = first(self._ours)
            failing.callback(made.close)
            pair = made, other.result()
            failing.pop_all()
            return pair


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
