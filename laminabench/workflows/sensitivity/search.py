"""Replays of two systems with each input at the ends of its range, and the search for where they are even."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.parallel import WorkerPool, worker_pool
from laminabench.workflows.compare.cells import Placed
from laminabench.workflows.compare.spec import Deployed, price_of
from laminabench.workflows.replay import Workload, replay
from laminabench.workflows.sensitivity.answer import Bar, BreakEven, Point, Sensitivity
from laminabench.workflows.sensitivity.inputs import Input, Value, inputs_of

Result = TypeVar("Result")

# A gain nearer to none than this is none: 0.05 %.
EVEN = 5e-4
# Where the ends of what is searched are nearer to each other than this share, one of them is the answer.
NEAR = 1e-3
MOST_STEPS = 24


@dataclass(frozen=True, slots=True)
class Rate:
    """The rates of one system's replay."""

    tokens_per_s: float
    tbt_ms: float  # p50
    tbt_p99_ms: float
    rejected: int
    steady: bool  # whether it is of a steady window; else the end of the run is in it, when batches run empty


@dataclass(frozen=True)
class Question:
    """Two systems on their devices, and everything that may be otherwise; what a worker process has."""

    systems: tuple[str, str]
    chosen: Mapping[str, Deployed]
    trace: Trace
    workload: Workload
    inputs: Sequence[Input]

    def with_input(self, place: int | None, value: Value) -> Mapping[str, Deployed]:
        """Return both systems with one input at this value: a price changes both, others one."""
        if place is None:
            return self.chosen
        one = self.inputs[place]
        of = one.of or self.systems
        return {name: one.change(on, value) if name in of else on for name, on in self.chosen.items()}

    def replayed(self, place: int | None, value: Value, name: str) -> Rate:
        on = self.with_input(place, value)[name]
        # With iterations, which determine the steady window.
        summary = replay(self.trace, name, on.setup, self.workload, on.routed).summary
        rate, tbt = summary.throughput_tokens_per_s or 0.0, summary.tbt_ms
        if not rate:
            raise UserError("sensitivity-no-tokens", f"{name} makes no tokens to compare: no request fits")
        times = tbt.p50 or 0.0, tbt.p99 or 0.0
        return Rate(rate, *times, summary.requests.rejected, not summary.window.fell_back)

    def point(self, place: int | None, value: Value, rates: Mapping[str, Rate]) -> Point:
        changed = self.with_input(place, value)
        usd = {name: on.hardware.usd_per_hour or 0.0 for name, on in changed.items()}
        first, second = self.systems
        bought = rates[first].tokens_per_s * usd[second], rates[second].tokens_per_s * usd[first]
        return Point(
            value,
            bought[0] / bought[1] - 1,
            {name: rate.tokens_per_s for name, rate in rates.items()},
            {name: rate.tbt_ms for name, rate in rates.items()},
            {name: rate.tbt_p99_ms for name, rate in rates.items()},
            usd,
            sum(rate.rejected for rate in rates.values()),
        )


# An input's place in the question, its value, and the system to replay with it.
Case = tuple[int | None, Value, str]


def sensitivity(
    cell: Placed,
    workload: Workload,
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Sensitivity:
    """Return the sensitivity to every input; deployments stay fixed, whatever they then cost."""
    first, second = cell.chosen
    for name, on in cell.chosen.items():
        price_of(name, on.hardware)
    question = Question((first, second), cell.chosen, cell.fitting, workload, inputs_of(cell.chosen))
    with worker_pool(question, jobs=jobs) as does:
        return _Work(question, does, progress).answer()


def _replay(question: Question, case: Case) -> Rate | str:
    """Replay one case in a worker process; return a message if the value is impossible."""
    place, value, name = case
    try:
        return question.replayed(place, value, name)
    except UserError as error:
        if place is None:
            raise
        return str(error)


@dataclass(frozen=True, slots=True)
class _Bracket:
    """The two values of an input between which the gain changes its sign."""

    place: int
    low: Point
    high: Point
    unchanged: Mapping[str, Rate]  # of systems without this input


def _root(question: Question, bracket: _Bracket) -> tuple[float, int]:
    """Return, in a worker process, the value at which the gain is none, and the replays it took.

    Regula falsi with the Illinois rule: an end that stays twice counts half. By logarithms, where there are.
    """
    one = question.inputs[bracket.place]
    (low, gain_low), (high, gain_high) = (
        (_number(end.value), end.gain) for end in (bracket.low, bracket.high)
    )
    scaled, value_of = (math.log, math.exp) if low > 0 else (float, float)
    low, high = scaled(low), scaled(high)
    replays, at, stayed = 0, low, 0
    for _ in range(MOST_STEPS):
        at = low - gain_low * (high - low) / (gain_high - gain_low)
        value = value_of(at)
        if one.whole:
            value = float(round(value))
        rates = {name: question.replayed(bracket.place, value, name) for name in one.of}
        replays += len(rates)
        gain = question.point(bracket.place, value, {**bracket.unchanged, **rates}).gain
        if abs(gain) < EVEN:
            break
        if (gain < 0) == (gain_low < 0):
            low, gain_low = at, gain
            gain_high /= 2 if stayed > 0 else 1
            stayed = 1
        else:
            high, gain_high = at, gain
            gain_low /= 2 if stayed < 0 else 1
            stayed = -1
        if value_of(high) - value_of(low) <= max(NEAR * abs(value), one.whole):
            break
    return value, replays


def _number(value: Value) -> float:
    assert not isinstance(value, str)
    return value


class _Work:
    """One answer in the making: all ends at once, then every break-even."""

    def __init__(self, question: Question, does: WorkerPool, progress: Callable[[int, int], None]) -> None:
        self.question, self.does, self.progress = question, does, progress
        self.done = self.total = self.replays = 0

    def answer(self) -> Sensitivity:
        question = self.question
        bases: list[Case] = [(None, 0.0, name) for name in question.systems]
        attempts = {place: self._attempts(one) for place, one in enumerate(question.inputs)}
        cases = [
            (place, value, name)
            for place, values in attempts.items()
            for value in values
            for name in question.inputs[place].of
        ]
        rates = self._rates([*bases, *cases])
        own = {name: _known(rates[None, 0.0, name]) for name in question.systems}
        base = question.point(None, 0.0, own)
        points: dict[int, dict[Value, Point | str]] = {}
        for place, values in attempts.items():
            one = question.inputs[place]
            points[place] = {one.here: replace(base, value=one.here)}
            for value in values:
                own_rates = {name: rates[place, value, name] for name in one.of}
                wrong = next((each for each in own_rates.values() if isinstance(each, str)), None)
                changed = {name: each for name, each in own_rates.items() if not isinstance(each, str)}
                points[place][value] = wrong or question.point(place, value, {**own, **changed})
        evens = self._break_evens(points, own)
        bars = [
            self._bar(one, points[place], evens.get(place), base.gain)
            for place, one in enumerate(question.inputs)
        ]
        return Sensitivity(
            question.systems,
            base,
            sorted(bars, key=lambda bar: -bar.span),
            {name: str(on.hardware) for name, on in question.chosen.items()},
            tuple(name for name, rate in own.items() if not rate.steady),
            self.replays,
        )

    @staticmethod
    def _attempts(one: Input) -> list[Value]:
        """Return the ends of an input's range, and of its search if that takes replays, except its value."""
        beyond = one.searched if one.searched and one.of else ()
        return [value for value in dict.fromkeys((*one.values, *beyond)) if value != one.here]

    def _rates(self, cases: Sequence[Case]) -> dict[Case, Rate | str]:
        rates = {cases[place]: rate for place, rate in self._reported(self.does(_replay, cases), len(cases))}
        self.replays += len(cases)
        return rates

    def _reported(
        self, work: Generator[tuple[int, Result], None, None], count: int
    ) -> Generator[tuple[int, Result], None, None]:
        self.total += count
        for each in work:
            self.done += 1
            self.progress(self.done, self.total)
            yield each

    def _break_evens(
        self, points: Mapping[int, Mapping[Value, Point | str]], own: Mapping[str, Rate]
    ) -> dict[int, BreakEven]:
        break_evens: dict[int, BreakEven] = {}
        brackets: list[_Bracket] = []
        for place, each in points.items():
            one = self.question.inputs[place]
            if not one.of:
                break_evens[place] = BreakEven(self._even_price(place, own), None)
            if one.searched is None:
                continue
            known = sorted(
                (at for at in each.values() if isinstance(at, Point) and not isinstance(at.value, str)),
                key=lambda at: _number(at.value),
            )
            break_evens[place] = BreakEven(None, (_number(known[0].value), _number(known[-1].value)))
            # What is here in words is not among these numbers.
            near = _number(known[0].value) if isinstance(one.here, str) else one.here
            if crossing := _crossing(known, near):
                unchanged = {name: rate for name, rate in own.items() if name not in one.of}
                brackets.append(_Bracket(place, *crossing, unchanged))
        for index, (value, replays) in self._reported(self.does(_root, brackets), len(brackets)):
            place = brackets[index].place
            self.replays += replays
            break_evens[place] = replace(break_evens[place], value=value)
        return break_evens

    def _even_price(self, place: int, own: Mapping[str, Rate]) -> float | None:
        """Return the price at which both are even: costs are linear in it, so no replay is needed."""
        first, second = self.question.systems

        def lead(usd: float) -> float:
            """Return what both would pay for the other's tokens, less what they pay."""
            hourly = {
                name: on.hardware.usd_per_hour or 0.0
                for name, on in self.question.with_input(place, usd).items()
            }
            return own[first].tokens_per_s * hourly[second] - own[second].tokens_per_s * hourly[first]

        fixed, each = lead(0.0), lead(1.0) - lead(0.0)
        price = -fixed / each if each else -1.0
        return price if price > 0 else None

    def _bar(
        self, one: Input, points: Mapping[Value, Point | str], even: BreakEven | None, here: float
    ) -> Bar:
        ends = [(value, points[value]) for value in one.values]
        return Bar(
            one,
            tuple(end for _, end in ends if isinstance(end, Point)),
            even,
            here,
            {value: end for value, end in ends if isinstance(end, str)},
        )


def _known(rate: Rate | str) -> Rate:
    assert not isinstance(rate, str)
    return rate


def _crossing(points: Sequence[Point], here: float) -> tuple[Point, Point] | None:
    """Return the ordered pair of values, nearest to `here`, between which the gain changes its sign."""
    pairs = [pair for pair in itertools.pairwise(points) if (pair[0].gain < 0) != (pair[1].gain < 0)]
    return min(
        pairs,
        key=lambda pair: min(abs(_number(each.value) - here) for each in pair),
        default=None,
    )
