"""Workers that are lost: the one error of an engine that it can do something about itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from lamina.pipeline import EngineError


class LostError(EngineError):
    """Some workers cannot go on. If `workers` is empty, all can, and yet they have lost each other."""

    def __init__(self, workers: Collection[int], code: str, why: str) -> None:
        super().__init__(code, why)
        self.workers = frozenset(workers)


class WorkplaceLostError(EngineError):
    """What workers come from has ended, and they with it: another one takes its place when it is asked."""


def last_sentence(output: str) -> str:
    """The last line of a process's output that is a sentence: below it a traceback may have an error code."""
    return next((line for line in reversed(output.splitlines()) if " " in line), "")


class Replaced(NamedTuple):
    """Who was."""

    workers: frozenset[str]  # by name
    pools: frozenset[int]  # KV memories that were lost with them, wholly or in part
