"""The common frame of the benchmarks: measuring, spreads, targets, JSON and tables.

A benchmark is a function `run(..., watcher) -> Report`. It measures (`in_turns`, `rounds_for`), makes a Row
of each measurement (the facts of --json and the cells of the table, together), and returns a Report: the
facts, and sentences and tables for people, with targets and measurements. The command in
`laminabench.cli.bench` only parses options: `@measuring` adds --json, -q and -v and a progress bar, and
prints the Report. A benchmark that writes files too does so in `Report.write`, after its result was printed.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Form = Callable[[float], str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Watcher:
    """Callbacks of a running benchmark; by default they do nothing."""

    progress: Callable[[int, int | None], None] = lambda done, total: None
    note: Callable[[str], None] = lambda sentence: None
    detail: Callable[[str], None] = lambda sentence: None


QUIET = Watcher()


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of a measurement, and its extremes, which show how noisy the machine was."""

    median: float
    min: float
    max: float

    def cells(self, form: Form) -> tuple[str, str]:
        """Return the cells of a table: the median, and the range."""
        return form(self.median), f"{form(self.min)} to {form(self.max)}"

    def text(self, form: Form) -> str:
        """Return a text such as `2 ms (1 ms to 3 ms)`."""
        return "{} ({})".format(*self.cells(form))


def spread(values: Sequence[float]) -> Spread:
    return Spread(float(statistics.median(values)), float(min(values)), float(max(values)))


def seconds_of(action: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def in_turns(
    actions: Mapping[str, Callable[[], T]],
    rounds: int,
    progress: Callable[[int, int | None], None] = QUIET.progress,
    after: Callable[[], object] = lambda: None,
) -> dict[str, list[T]]:
    """Return every action's results, one a round; `after` is called at the end of each round.

    Actions alternate, so that noise of the machine affects all of them.
    """
    results: dict[str, list[T]] = {name: [] for name in actions}
    for done in range(rounds):
        progress(done, rounds)
        for name, action in actions.items():
            results[name].append(action())
        after()
    progress(rounds, rounds)
    return results


def ratios(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Return the spread of ratios, round by round: noise in a round affects both numbers."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def rounds_for(seconds: float, fewest: int) -> Iterator[int]:
    """Count rounds until the time is over, and at least `fewest`."""
    deadline, done = time.perf_counter() + seconds, 0
    while time.perf_counter() < deadline or done < fewest:
        yield done
        done += 1


# A bool, or None without a target, is shown as whether the target was met.
Cell = str | bool | None


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement as facts and as cells, and whether it met its target; None without a target."""

    facts: Mapping[str, object]
    cells: Sequence[Cell]
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table, with columns aligned right unless their title begins with `<`."""

    titles: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def judged(titles: Sequence[str], rows: Sequence[Row]) -> Table:
    """Return a table of rows whose last cell shows whether they met their target."""
    return Table(titles, [(*row.cells, row.met) for row in rows])


# A sentence, a sentence with whether its target was met, or a table.
Text = str | tuple[str, bool | None] | Table


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a benchmark; the facts' names and order are those of --json."""

    facts: Mapping[str, object]
    text: Sequence[Text]
    # Writes files and yields a note on each.
    write: Callable[[], Iterator[str]] = lambda: iter(())
    failed: bool = False  # a part failed (not a missed target): the exit code is 1

    def json(self) -> dict[str, object]:
        return {name: plain(fact) for name, fact in self.facts.items()}


def plain(fact: object) -> object:
    """Return a fact as JSON types: rows and dataclasses become objects."""
    if isinstance(fact, Row):
        return plain({**fact.facts, "met": fact.met})
    if dataclasses.is_dataclass(fact) and not isinstance(fact, type):
        return dataclasses.asdict(fact)
    if isinstance(fact, Mapping):
        return {name: plain(inner) for name, inner in fact.items()}
    return [plain(inner) for inner in fact] if isinstance(fact, list | tuple) else fact


def all_met(rows: Sequence[Row]) -> bool:
    """Return whether no target was missed."""
    return all(row.met is not False for row in rows)


def all_judged(verdicts: Sequence[bool | None]) -> bool | None:
    """Return whether no target was missed; None without any target."""
    judged = [met for met in verdicts if met is not None]
    return all(judged) if judged else None


def timed(what: str, seconds: Sequence[float], target_s: float | None, **more: object) -> Row:
    """Return a row of times, judged by the median if there is a target."""
    took = spread(seconds)
    facts = {"what": what, "seconds": took, "target_s": target_s, **more}
    target = "" if target_s is None else time_text(target_s)
    met = None if target_s is None else took.median <= target_s
    return Row(facts, (what, *took.cells(time_text), target), met)


def relative(what: str, ratio: Spread, target: float, **more: object) -> Row:
    """Return a row of the time of one thing over that of another, measured in turns."""
    cells = (what, *ratio.cells("{:.2f}".format), f"{target:.2f}")
    return Row({"what": what, "ratio": ratio, "target_ratio": target, **more}, cells, ratio.median <= target)


def times_report(name: str, rows: Sequence[Row], *text: Text) -> Report:
    """Return a report of times with their targets, and further texts."""
    table = judged(("<what", "median", "min to max", "target", ""), rows)
    return Report({"benchmark": name, "rows": rows, "met": all_met(rows)}, [table, *text])


def time_text(seconds: float) -> str:
    """Return a time in the unit that reads best."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def ms_text(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"
