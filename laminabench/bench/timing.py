"""Times of actions, and how a row of a benchmark tells them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence


def seconds_of(action: Callable[[], object]) -> float:
    """How long the action takes, once."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def timed(what: str, seconds: Sequence[float], target_s: float | None, **more: object) -> dict[str, object]:
    """A row of a benchmark: judged by the median, or not at all where nobody has set a target."""
    found = spread(seconds)
    met = None if target_s is None else found["median"] <= target_s
    return {"what": what, "seconds": found, "target_s": target_s, "met": met, **more}


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median is what counts; the ends show how noisy the machine was."""
    return {"median": float(statistics.median(values)), "min": min(values), "max": max(values)}
