"""Verdicts of cases against their goldens: changed metrics, by how much, likely causes, updates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from laminabench.analysis.metrics_table import better
from laminabench.util.errors import UserError
from laminabench.util.json import Json
from laminabench.workflows.check.case_file import LEAST_ROUNDS, Case, CaseFile
from laminabench.workflows.check.golden import (
    Obtained,
    Value,
    golden_path,
    goldens_in,
    read_golden,
    write_golden,
)

Direction = Literal["better", "worse", "up", "down", "same"]
Status = Literal["same", "moved", "missing", "stale", "skipped"]
FAILING: tuple[Status, ...] = ("moved", "missing", "stale")
Goldens = Mapping[str, Obtained | None]
CONFIDENCE = 0.95
_SHOWN = ("metric", "golden", "now", "interval", "direction", "tolerance", "moved")


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
    """Return what a change of this sign means; `up` or `down` where neither is better."""
    if change == 0:
        return "same"
    sense = better(metric)
    if sense is None:
        return "up" if change > 0 else "down"
    return "better" if (change > 0) == (sense == "more") else "worse"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one case."""

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
        """Return the verdict for --json."""
        return {
            "case": self.case,
            "status": self.status,
            "backend": self.backend,
            "metrics": [
                {
                    **{name: getattr(change, name) for name in _SHOWN},
                    "change": change.share,
                    "confidence": CONFIDENCE if change.interval else None,
                }
                for change in self.changes
            ],
            "causes": list(self.causes),
            "note": self.note,
            "wall_s": self.wall_s,
        }


def judge(case: Case, golden: Obtained | None, now: Obtained, wall_s: float) -> Verdict:
    """Return the verdict on a case that was replayed just now."""
    backend = "emulated" if "emulate" in case.flags else "live" if case.measured else "modelled"
    if golden is None:
        return Verdict(case.name, "missing", backend, note="there is no golden", wall_s=wall_s)
    same_backend = golden.facts["backend"] == backend
    if same_backend and case.measured and not case.against and not same_host(golden.facts, now.facts):
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
    """Return the verdict on a golden without a case."""
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
    """Return the change of a measured metric: moved if its whole interval is beyond the tolerance."""
    estimate = change_interval(golden, now)
    moved = estimate.low > tolerance or estimate.high < -tolerance
    interval = (estimate.low, estimate.high)
    was, is_ = statistics.median(golden), statistics.median(now)
    return Change(metric, was, is_, estimate.estimate, interval, tolerance, moved)


def _middle(value: Value) -> float | None:
    return statistics.median(value) if isinstance(value, list) else value


def require_samples(metric: str, samples: Sequence[float | None]) -> list[float]:
    """Return the rounds of a measured metric; raise a UserError if their change would be no ratio."""
    positive = [each for each in samples if each is not None and math.isfinite(each) and each > 0]
    if len(positive) < len(samples):
        raise UserError(
            "check-metric-not-positive",
            f"{metric} is not above zero in every round: it cannot be compared where it is measured",
        )
    assert len(positive) >= LEAST_ROUNDS
    return positive


class Interval(NamedTuple):
    """A change as a share of what was before: the estimate, and where it lies with the confidence."""

    low: float
    estimate: float
    high: float


def change_interval(before: Sequence[float], after: Sequence[float]) -> Interval:
    """Return the change between two sets of positive measurements (Hodges and Lehmann's, with its interval).

    The ratios of all pairs, in order: their median is the estimate, and so many are cut off at both ends that
    the Wilcoxon-Mann-Whitney test would reject what is beyond. No kind of noise is assumed, one round that
    the machine disturbed moves little, and unlike a bootstrap it is exact for a handful of rounds.
    """
    ratios = sorted(new / old for new in after for old in before)
    cut = _cut_off(len(before), len(after), 1 - CONFIDENCE)
    return Interval(ratios[cut] - 1, statistics.median(ratios) - 1, ratios[-1 - cut] - 1)


def _cut_off(first: int, second: int, error: float) -> int:
    """Return the ratios outside at each end: the most for which so small a U is too improbable."""
    orders = math.comb(first + second, first)
    below = 0
    for cut, ways in enumerate(_ways(first, second)):
        below += ways
        if 2 * below > error * orders:
            return max(0, cut - 1)
    raise AssertionError("the distribution ends at 1")


@cache
def _ways(first: int, second: int) -> tuple[int, ...]:
    """Return in how many orders of both sets U is 0, 1, 2, ... (Gauss's binomial)."""
    ways = [1] + [0] * (first * second)
    for step in range(1, first + 1):
        for at in range(len(ways) - 1, second + step - 1, -1):
            ways[at] -= ways[at - second - step]
        for at in range(step, len(ways)):
            ways[at] += ways[at - step]
    return tuple(ways)


def goldens_of(folder: Path, cases: Sequence[Case], *, update: bool) -> Goldens:
    """Return the goldens by case; an update takes an unreadable one as missing and rewrites it."""
    goldens: dict[str, Obtained | None] = {}
    for case in cases:
        try:
            goldens[case.name] = read_golden(folder, case.name)
        except UserError:
            if not update:
                raise
            goldens[case.name] = None
    return goldens


def verdicts_on(
    file: CaseFile, cases: Sequence[Case], goldens: Goldens, results: Mapping[str, tuple[Obtained, float]]
) -> list[Verdict]:
    """Return verdicts on cases in the file's order; for a full run also on goldens without a case."""
    verdicts = [judge(case, goldens[case.name], *results[case.name]) for case in cases]
    if len(cases) == len(file.cases):
        known = {case.name for case in cases}
        verdicts += [stale(name) for name in goldens_in(file.goldens) if name not in known]
    return verdicts


def write_goldens(
    file: CaseFile,
    verdicts: Sequence[Verdict],
    goldens: Goldens,
    results: Mapping[str, tuple[Obtained, float]],
) -> list[str]:
    """Write the results as goldens; return the names of those written or removed.

    One whose numbers and inputs are the same stays as it is, with the version that it was made by.
    """
    changed = []
    for verdict in verdicts:
        if verdict.status == "stale":
            golden_path(file.goldens, verdict.case).unlink()
            changed.append(verdict.case)
            continue
        golden, now = goldens[verdict.case], results[verdict.case][0]
        # Unchanged metrics may nevertheless have been obtained from different inputs.
        if (
            golden is None
            or verdict.status != "same"
            or golden.metrics.keys() != now.metrics.keys()
            or inputs_differ(golden.facts, now.facts)
        ):
            write_golden(file.goldens, verdict.case, now)
            changed.append(verdict.case)
    return changed


def same_host(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether measurements of both may be compared directly."""
    return all(one["host"][name] == other["host"][name] for name in ("cpu", "cores"))


# How many differences of one kind are worth naming.
_NAMED = 4
_NONE = object()

# Names of the parts of the facts in sentences, the likeliest cause first.
_PART_NAMES = {
    "case": "the case itself",
    "trace": "the trace",
    "coefficients": "cost coefficients",
    "deployment": "the deployment or its price",
    "devices": "data sheets",
    "model": "the model",
    "host": "the machine",
}


def causes(golden: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the likely causes, a sentence each: inputs of the replay first."""
    likely = []
    for part, called in _PART_NAMES.items():
        differing = list(_differences(golden.get(part, {}), now.get(part, {})))
        if differing:
            more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
            likely.append(f"{called}: {'; '.join(differing[:_NAMED])}{more}")
    return (*likely, _code(golden["laminabench"], now["laminabench"], explained=bool(likely)))


def inputs_differ(golden: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether the golden's inputs differ from the current ones; code is not an input."""
    return any(golden.get(part) != now.get(part) for part in _PART_NAMES if part != "host")


def _code(golden: Mapping[str, Any], now: Mapping[str, Any], *, explained: bool) -> str:
    """Return what is known of the code's own share."""
    was, is_ = _version(golden), _version(now)
    if was != is_:
        return (
            f"{'perhaps also the code' if explained else 'nothing but the code'}: laminabench {was} -> {is_}"
        )
    if "dirty" in is_:
        return f"changes to the code that are not committed, perhaps: laminabench {is_} then and now"
    if explained:
        return f"not the code: laminabench {is_} then and now"
    return f"nothing that is recorded: laminabench {is_}, the same inputs"


def _version(facts: Mapping[str, Any]) -> str:
    return f"{facts['version']} ({facts['commit'] or 'no commit known'})"


def _differences(golden: Any, now: Any, path: str = "") -> Iterator[str]:
    if isinstance(golden, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*golden, *now]):
            yield from _differences(golden.get(key, _NONE), now.get(key, _NONE), f"{path} {key}".strip())
    elif golden != now:
        yield f"{path} {_text(golden)} -> {_text(now)}{_by_how_much(golden, now)}"


def _text(value: Any) -> str:
    if value is _NONE:
        return "not there"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    # Checksums and sources are distinguished by their beginning.
    return text if len(text) <= 40 else f"{text[:12]}…"


def _by_how_much(golden: Any, now: Any) -> str:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (golden, now))
    return f" ({now / golden - 1:+.3g})".replace("+-", "-") if numbers and golden else ""
