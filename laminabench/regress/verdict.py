"""A case now, held against its golden: which metrics moved, by how much, and the likely cause."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from laminabench.analysis.metrics_table import better
from laminabench.errors import UserError
from laminabench.json_safe import Json
from laminabench.regress.case_file import Case
from laminabench.regress.causes import causes
from laminabench.regress.facts import same_host
from laminabench.regress.golden import Obtained, Value
from laminabench.regress.interval import CONFIDENCE, LEAST_ROUNDS, change_interval

Direction = Literal["better", "worse", "up", "down", "same"]
Status = Literal["same", "moved", "missing", "stale", "skipped"]
FAILING: tuple[Status, ...] = ("moved", "missing", "stale")


@dataclass(frozen=True, slots=True)
class Change:
    """One metric then and now; of rounds that were measured the medians, and an interval of the change."""

    metric: str
    golden: float | None
    now: float | None
    share: float | None  # of the golden; none where there is nothing to divide by
    interval: tuple[float, float] | None
    tolerance: float
    moved: bool

    @property
    def direction(self) -> Direction:
        if self.share is not None:
            return direction(self.metric, self.share)
        if self.golden is None or self.now is None:
            return "same" if self.golden == self.now else "up" if self.golden is None else "down"
        return direction(self.metric, self.now - self.golden)


def direction(metric: str, change: float) -> Direction:
    """What a change of this sign means; `up` or `down` where neither is better."""
    if change == 0:
        return "same"
    sense = better(metric)
    if sense is None:
        return "up" if change > 0 else "down"
    return "better" if (change > 0) == (sense == "more") else "worse"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of one case."""

    case: str
    status: Status
    backend: str
    changes: tuple[Change, ...] = ()
    causes: tuple[str, ...] = ()
    note: str = ""
    wall_s: float = 0.0

    @property
    def failed(self) -> bool:
        return self.status in FAILING

    @property
    def moved(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.moved)

    def describe(self) -> dict[str, Json]:
        """For --json."""
        return {
            "case": self.case,
            "status": self.status,
            "backend": self.backend,
            "metrics": [
                {
                    "metric": change.metric,
                    "golden": change.golden,
                    "now": change.now,
                    "change": change.share,
                    "interval": change.interval,
                    "confidence": CONFIDENCE if change.interval else None,
                    "direction": change.direction,
                    "tolerance": change.tolerance,
                    "moved": change.moved,
                }
                for change in self.changes
            ],
            "causes": list(self.causes),
            "note": self.note,
            "wall_s": self.wall_s,
        }


def judge(case: Case, golden: Obtained | None, now: Obtained, wall_s: float) -> Verdict:
    """The verdict on a case that was replayed just now."""
    backend = "live" if case.measured else "modelled"
    if golden is None:
        return Verdict(case.name, "missing", backend, note="there is no golden", wall_s=wall_s)
    alike = golden.facts["backend"] == backend
    if alike and case.measured and not case.against and not same_host(golden.facts, now.facts):
        note = (
            f"measured on another machine ({golden.facts['host']['cpu']}, {golden.facts['host']['cores']} "
            "cores): not compared; with [case.NAME.against] it would be a ratio of two things measured here"
        )
        return Verdict(case.name, "skipped", backend, note=note, wall_s=wall_s)
    changes = tuple(
        _change(metric, golden.metrics.get(metric), now.metrics[metric], case.tolerance[metric])
        for metric in case.metrics
    )
    moved = any(change.moved for change in changes)
    return Verdict(
        case.name,
        "moved" if moved else "same",
        backend,
        changes,
        causes(golden.facts, now.facts) if moved else (),
        wall_s=wall_s,
    )


def stale(name: str) -> Verdict:
    """The verdict on a golden that no case asks for."""
    return Verdict(name, "stale", "none", note="the golden has no case any more")


def _change(metric: str, golden: Value, now: Value, tolerance: float) -> Change:
    if isinstance(golden, list) and isinstance(now, list):
        return _measured(metric, golden, now, tolerance)
    # The one was measured and the other not: the medians are shown, and that is a change.
    was, is_ = _middle(golden), _middle(now)
    share = (is_ - was) / abs(was) if was and is_ is not None else None
    far = was != is_ if was is None or is_ is None else abs(is_ - was) > tolerance * abs(was)
    return Change(metric, was, is_, share, None, tolerance, far or type(golden) is list or type(now) is list)


def _measured(metric: str, golden: Sequence[float], now: Sequence[float], tolerance: float) -> Change:
    """Moved only if even the end of the interval that is nearest to no change is beyond the tolerance."""
    found = change_interval(golden, now)
    moved = found.low > tolerance or found.high < -tolerance
    interval = (found.low, found.high)
    was, is_ = statistics.median(golden), statistics.median(now)
    return Change(metric, was, is_, found.estimate, interval, tolerance, moved)


def _middle(value: Value) -> float | None:
    return statistics.median(value) if isinstance(value, list) else value


def require_samples(metric: str, samples: Sequence[float | None]) -> list[float]:
    """The rounds of a measured metric; a UserError if a change of them would not be a ratio."""
    found = [each for each in samples if each is not None and math.isfinite(each) and each > 0]
    if len(found) < len(samples):
        raise UserError(
            "check-metric-not-positive",
            f"{metric} is not above zero in every round: it cannot be compared where it is measured",
        )
    assert len(found) >= LEAST_ROUNDS
    return found
