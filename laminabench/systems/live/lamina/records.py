"""The records of an engine's workers, as parts of a replay's outcome, its timeline and its check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from laminabench.runs.summary import Schedule
from laminabench.sim.outcome import ATTENTION, Columns, Outcome
from laminabench.sim.timeline import Lanes, two_iterations
from laminabench.systems.live.lamina.log import ReplayLog
from laminabench.systems.live.lamina.loop import Clock
from laminabench.util.live_progress import FaultEvent

if TYPE_CHECKING:
    from lamina.pipeline import Records
    from lamina.serve import Engines, Fleet


PROCESS = "lamina on this machine"


@dataclass(frozen=True)
class Recorded:
    """A run's records (lamina.pipeline.Records), and what is wrong with them if anything is."""

    records: Records
    violations: list[str]
    began_s: float
    # Iterations of each batch before this engine's first, of a replay that was resumed.
    before: Mapping[int, int] = field(default_factory=dict)
    batches: int = 1  # of each instance
    instances: int = 1
    process: str = PROCESS

    def schedule(self) -> Schedule:
        """Return whether the workers kept to the schedule, and each one's idle share of the recorded time."""
        return Schedule(
            pieces=len(self.records), violations=list(self.violations), bubbles=self.records.idle()
        )

    def outcome(self, log: ReplayLog, kv_capacity_tokens: int) -> Outcome:
        """Return the log's tables with the times that the workers recorded."""
        of = np.array(self.records.replica_of, np.int64)
        busy_s = self.records.busy_s
        return log.tables.outcome(
            iterations=self.with_times(log.tables.iterations(), log.faults),
            # Of each replica or stage, as its longest worker: they wait for each other.
            replica_busy_s=np.array([busy_s[of == each].max() for each in np.unique(of[of >= 0])]),
            attention_busy_s=self._attention_busy_s(busy_s, of),
            peak_kv_tokens=log.peak_kv_tokens,
            kv_capacity_tokens=kv_capacity_tokens,
            instance_batches=(self.batches,) * self.instances,
        )

    def _attention_busy_s(self, busy_s: NDArray[np.float64], of: NDArray[np.int64]) -> float:
        """Return the sum of the busiest attention worker of each instance."""
        longest: dict[str, float] = {}
        for name, spent, replica in zip(self.records.workers, busy_s.tolist(), of.tolist(), strict=True):
            instance = name.rpartition("/")[0]
            longest[instance] = max(longest.get(instance, 0.0), spent if replica < 0 else 0.0)
        return sum(longest.values())

    def with_times(self, iterations: Columns, faults: Sequence[FaultEvent] = ()) -> Columns:
        """Return the iterations with the workers' own times of model and attention.

        Of those before the replay was last resumed, what the journal had, which may be NaN: unknown. A worker
        that was replaced took what it knew along, so of a fault's kind of workers all before it is unknown.
        """
        known = self.records.of_iterations
        first = np.array([self.before.get(batch, 0) for batch in known.batch.tolist()], np.int64)
        at = {
            pair: row
            for row, pair in enumerate(
                zip(known.batch.tolist(), (known.iteration + first).tolist(), strict=True)
            )
        }
        pairs = zip(iterations["batch"].tolist(), iterations["iteration"].tolist(), strict=True)
        rows = np.array([at.get(pair, -1) for pair in pairs], np.int64)
        times = {}
        for kind in ("model", "attention"):
            lost_s = self._lost_s(kind, faults, iterations["batch"])
            matched = (rows >= 0) & (iterations["start_s"] >= lost_s)
            column = np.where(iterations["start_s"] < lost_s, np.nan, iterations[f"{kind}_s"])
            column[matched] = getattr(known, f"{kind}_s")[rows[matched]]
            times[f"{kind}_s"] = column
        return iterations | times

    def _lost_s(self, kind: str, faults: Sequence[FaultEvent], batch: NDArray[Any]) -> NDArray[np.float64]:
        """Return when workers of that kind were last replaced, where the iterations ran."""
        lost_s = np.full(len(batch), -np.inf)
        for fault in faults:
            for worker in fault.workers:
                instance, slash, name = worker.rpartition("/")
                if name.partition(" ")[0] == kind:
                    here = batch // self.batches == int(instance) if slash else True
                    lost_s = np.where(here, np.maximum(lost_s, fault.recovered_s), lost_s)
        return lost_s

    def drawn(
        self, outcome: Outcome, window_s: tuple[float, float] | None
    ) -> tuple[Outcome, Lanes, tuple[float, float]]:
        """Return the outcome with the work that begins in the window, and its lanes: one for each worker.

        By default two iterations from the middle of what is on record, which may have holes.
        """
        records = self.records
        start_s, end_s = records.start_ns / 1e9 - self.began_s, records.end_ns / 1e9 - self.began_s
        if window_s is None:
            middle = np.sort(start_s)[len(start_s) // 2] if len(start_s) else 0.0
            window_s = two_iterations(outcome, float(middle))
        inside = (start_s >= window_s[0]) & (start_s < window_s[1])
        order = np.flatnonzero(inside)[np.argsort(start_s[inside], kind="stable")]
        lane = records.worker[order]
        replica = np.array(records.replica_of, np.int64)[lane]
        timeline: Columns = {
            "batch": records.batch[order],
            "worker": np.where(replica < 0, ATTENTION, replica),
            "iteration": records.iteration[order]
            + np.array([self.before.get(batch, 0) for batch in records.batch[order].tolist()], np.int64),
            "cycle": records.cycle[order],
            "slice": records.slice[order],
            "start_s": start_s[order],
            "end_s": end_s[order],
        }
        batches = int(outcome.iterations["batch"].max(initial=0)) + 1
        lanes = Lanes(self.process, tuple(records.workers), lane, batches)
        return replace(outcome, timeline=timeline), lanes, window_s


@dataclass(frozen=True)
class OwnTimes:
    """Records of an engine in one process: its steps already have all times."""

    violations: Sequence[str] = ()

    def schedule(self) -> UnsetType:
        """Return UNSET: there is one batch, so nothing takes turns."""
        return UNSET

    def outcome(self, log: ReplayLog, kv_capacity_tokens: int) -> Outcome:
        """Return the log's tables."""
        iterations = log.tables.iterations()
        return log.tables.outcome(
            iterations=iterations,
            replica_busy_s=np.array([iterations["model_s"].sum()]),
            attention_busy_s=float(iterations["attention_s"].sum()),
            peak_kv_tokens=log.peak_kv_tokens,
            kv_capacity_tokens=kv_capacity_tokens,
        )


def recorded(
    engine: Engines, clock: Clock, before: Mapping[int, int] | None = None, process: str = PROCESS
) -> Recorded | OwnTimes:
    """Check the workers' records against the schedule, before the engine is closed."""
    from lamina.pipeline import check_schedule

    records = engine.records()
    if isinstance(records, list):
        return _of_all(cast("Fleet", engine), records, clock.began, before or {})
    if records is None:
        return OwnTimes()
    schedule = engine.schedule
    wrong = list(check_schedule(records, schedule))
    timed = _in_its_seconds(records, clock)
    return Recorded(timed, wrong, clock.began, before or {}, schedule.batches, process=process)


def _in_its_seconds(records: Records, clock: Clock) -> Records:
    """Convert to the replay's clock, of which a second may take several."""
    if clock.slowdown == 1:
        return records
    began, each = int(clock.began * 1e9), records.of_iterations
    return replace(
        records,
        busy_s=records.busy_s / clock.slowdown,
        of_iterations=replace(
            each, model_s=each.model_s / clock.slowdown, attention_s=each.attention_s / clock.slowdown
        ),
        start_ns=began + ((records.start_ns - began) / clock.slowdown).astype(np.int64),
        end_ns=began + ((records.end_ns - began) / clock.slowdown).astype(np.int64),
        ends_ns=(records.ends_ns / clock.slowdown).astype(np.int64),
    )


def _of_all(
    fleet: Fleet, records: Sequence[Records | None], began_s: float, before: Mapping[int, int]
) -> Recorded:
    """Join the records of all instances that are left."""
    from lamina.pipeline import check_schedule
    from lamina.pipeline.records import joined

    parts, violations, replicas = [], [], 0
    for each, own in zip(fleet.instances, records, strict=True):
        if own is not None:
            wrong = check_schedule(own, each.engine.schedule)
            violations += [f"instance {each.number}: {sentence}" for sentence in wrong]
            parts.append(own.moved(each.number, replicas=replicas, batches=each.number * fleet.batches))
            replicas += 1 + max(own.replica_of)
    return Recorded(joined(parts), violations, began_s, before, fleet.batches, len(fleet.instances))
