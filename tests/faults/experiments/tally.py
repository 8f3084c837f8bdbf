"""The result of an experiment: the number of cases, and each failure with the seed that reproduces it."""

from __future__ import annotations

import msgspec

# Most failures that are stored; all are counted.
MOST_FAILURES = 100


class Failure(msgspec.Struct, frozen=True):
    """A failed case: something was lost, wrong, leaked or crashed; `seed` reproduces it."""

    kind: str  # lost, wrong, leaked, crashed
    case: str  # which kind of case
    seed: int
    what: str


class Tally(msgspec.Struct):
    """The counts and failures of one experiment."""

    name: str
    attempts: int = 0
    survived: int = 0  # without any effect, or refused with a sentence
    lost: int = 0
    wrong: int = 0
    leaked: int = 0
    crashed: int = 0  # an error that is no sentence
    failures: list[Failure] = []
    facts: dict[str, float] = {}  # other numbers, such as p99 TBT or megabytes; the largest is kept

    def add(self, kind: str | None, case: str, seed: int, what: str = "") -> None:
        """Count one case; `kind` is None if it survived."""
        self.attempts += 1
        if kind is None:
            self.survived += 1
            return
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(Failure(kind, case, seed, what[:300]))

    def join(self, other: Tally) -> None:
        for name in ("attempts", "survived", "lost", "wrong", "leaked", "crashed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failures = (self.failures + other.failures)[:MOST_FAILURES]
        for name, value in other.facts.items():
            self.facts[name] = max(value, self.facts.get(name, value))
