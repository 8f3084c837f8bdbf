"""What an experiment came to: how much was tried, and each failure with what repeats it."""

from __future__ import annotations

import msgspec

# Kept one by one; all are counted.
MOST_FAILURES = 100


class Failure(msgspec.Struct, frozen=True):
    """Something that was lost, wrong, leaked, or no sentence; `seed` is its case's and repeats it."""

    kind: str  # lost, wrong, leaked, crashed
    case: str  # what of it
    seed: int
    what: str


class Tally(msgspec.Struct):
    """Of one experiment."""

    name: str
    tried: int = 0
    survived: int = 0  # as if nothing had been, or refused with a sentence
    lost: int = 0
    wrong: int = 0
    leaked: int = 0
    crashed: int = 0  # an error that is no sentence
    failures: list[Failure] = []
    facts: dict[str, float] = {}  # beside the counts, as p99 TBT or megabytes; the largest counts

    def add(self, kind: str | None, case: str, seed: int, what: str = "") -> None:
        """One more; `kind` is None where it survived."""
        self.tried += 1
        if kind is None:
            self.survived += 1
            return
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(Failure(kind, case, seed, what[:300]))

    def join(self, other: Tally) -> None:
        for name in ("tried", "survived", "lost", "wrong", "leaked", "crashed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failures = (self.failures + other.failures)[:MOST_FAILURES]
        for name, value in other.facts.items():
            self.facts[name] = max(value, self.facts.get(name, value))
