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

Found = TypeVar("Found")

# A gain nearer to none than this is none: 0.05 %.
EVEN = 5e-4
# Where the ends of what is searched are nearer to each other than this share, one of them is the answer.
NEAR = 1e-3
MOST_STEPS = 24


@dataclass(frozen=True, slots=True)
class Rate:
    """What a replay of one system comes to."""

    tokens_per_s: float
    tbt_ms: float
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
        """Both systems with one input at this value. A price changes both, other inputs whose they are."""
        if place is None:
            return self.chosen
        one = self.inputs[place]
        of = one.of or self.systems
        return {name: one.change(on, value) if name in of else on for name, on in self.chosen.items()}

    def replayed(self, place: int | None, value: Value, name: str) -> Rate:
        on = self.with_input(place, value)[name]
        # With iterations, which a steady window is found by.
        found = replay(self.trace, name, on.setup, self.workload, on.routed).summary
        rate, tbt = found.throughput_tokens_per_s or 0.0, found.tbt_ms.p50 or 0.0
        if not rate:
            raise UserError("sensitivity-no-tokens", f"{name} makes no tokens to compare: no request fits")
        return Rate(rate, tbt, found.requests.rejected, not found.window.fell_back)

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
            usd,
            sum(rate.rejected for rate in rates.values()),
        )


# An input's place in the question, its value, and the system to replay with it.
Case = tuple[int | None, Value, str]


def sensitivity(
    found: Placed,
    workload: Workload,
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Sensitivity:
    """Of every input. Deployments stay as they are, whatever they then cost."""
    first, second = found.chosen
    for name, on in found.chosen.items():
        price_of(name, on.hardware)
    asked = Question((first, second), found.chosen, found.kept, workload, inputs_of(found.chosen))
    with worker_pool(asked, jobs=jobs) as does:
        return _Work(asked, does, progress).answer()


def _replay(asked: Question, case: Case) -> Rate | str:
    """In a worker process; a sentence where the system cannot be with this value."""
    place, value, name = case
    try:
        return asked.replayed(place, value, name)
    except UserError as error:
        if place is None:
            raise
        return str(error)


@dataclass(frozen=True, slots=True)
class _Bracket:
    """Between which two values an input's gain changes its sign."""

    place: int
    low: Point
    high: Point
    unchanged: Mapping[str, Rate]  # of who does not have this input


def _root(asked: Question, bracket: _Bracket) -> tuple[float, int]:
    """In a worker process: the value at which the gain is none, and how many replays it took.

    Regula falsi with the Illinois rule: an end that stays twice counts half. By logarithms, where there are.
    """
    one = asked.inputs[bracket.place]
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
        rates = {name: asked.replayed(bracket.place, value, name) for name in one.of}
        replays += len(rates)
        gain = asked.point(bracket.place, value, {**bracket.unchanged, **rates}).gain
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

    def __init__(self, asked: Question, does: WorkerPool, progress: Callable[[int, int], None]) -> None:
        self.asked, self.does, self.progress = asked, does, progress
        self.done = self.total = self.replays = 0

    def answer(self) -> Sensitivity:
        asked = self.asked
        bases: list[Case] = [(None, 0.0, name) for name in asked.systems]
        tried = {place: self._tried(one) for place, one in enumerate(asked.inputs)}
        cases = [
            (place, value, name)
            for place, values in tried.items()
            for value in values
            for name in asked.inputs[place].of
        ]
        rates = self._rates([*bases, *cases])
        own = {name: _known(rates[None, 0.0, name]) for name in asked.systems}
        base = asked.point(None, 0.0, own)
        points: dict[int, dict[Value, Point | str]] = {}
        for place, values in tried.items():
            one = asked.inputs[place]
            points[place] = {one.here: replace(base, value=one.here)}
            for value in values:
                found = {name: rates[place, value, name] for name in one.of}
                wrong = next((each for each in found.values() if isinstance(each, str)), None)
                changed = {name: each for name, each in found.items() if not isinstance(each, str)}
                points[place][value] = wrong or asked.point(place, value, {**own, **changed})
        evens = self._break_evens(points, own)
        bars = [
            self._bar(one, points[place], evens.get(place), base.gain)
            for place, one in enumerate(asked.inputs)
        ]
        return Sensitivity(
            asked.systems,
            base,
            sorted(bars, key=lambda bar: -bar.span),
            {name: str(on.hardware) for name, on in asked.chosen.items()},
            tuple(name for name, rate in own.items() if not rate.steady),
            self.replays,
        )

    @staticmethod
    def _tried(one: Input) -> list[Value]:
        """The ends of its range, and of what is searched if that takes replays; not what it is anyway."""
        beyond = one.searched if one.searched and one.of else ()
        return [value for value in dict.fromkeys((*one.values, *beyond)) if value != one.here]

    def _rates(self, cases: Sequence[Case]) -> dict[Case, Rate | str]:
        found = {cases[place]: rate for place, rate in self._told(self.does(_replay, cases), len(cases))}
        self.replays += len(cases)
        return found

    def _told(
        self, work: Generator[tuple[int, Found], None, None], count: int
    ) -> Generator[tuple[int, Found], None, None]:
        self.total += count
        for each in work:
            self.done += 1
            self.progress(self.done, self.total)
            yield each

    def _break_evens(
        self, points: Mapping[int, Mapping[Value, Point | str]], own: Mapping[str, Rate]
    ) -> dict[int, BreakEven]:
        found: dict[int, BreakEven] = {}
        brackets: list[_Bracket] = []
        for place, each in points.items():
            one = self.asked.inputs[place]
            if not one.of:
                found[place] = BreakEven(self._even_price(place, own), None)
            if one.searched is None:
                continue
            known = sorted(
                (at for at in each.values() if isinstance(at, Point) and not isinstance(at.value, str)),
                key=lambda at: _number(at.value),
            )
            found[place] = BreakEven(None, (_number(known[0].value), _number(known[-1].value)))
            # What is here in words is not among these numbers.
            near = _number(known[0].value) if isinstance(one.here, str) else one.here
            if crossing := _crossing(known, near):
                unchanged = {name: rate for name, rate in own.items() if name not in one.of}
                brackets.append(_Bracket(place, *crossing, unchanged))
        for index, (value, replays) in self._told(self.does(_root, brackets), len(brackets)):
            place = brackets[index].place
            self.replays += replays
            found[place] = replace(found[place], value=value)
        return found

    def _even_price(self, place: int, own: Mapping[str, Rate]) -> float | None:
        """Both cost a fixed amount and so much for each dollar of this price: no replay is needed."""
        first, second = self.asked.systems

        def lead(usd: float) -> float:
            """What both would pay for the other's tokens, less what they pay."""
            hourly = {
                name: on.hardware.usd_per_hour or 0.0
                for name, on in self.asked.with_input(place, usd).items()
            }
            return own[first].tokens_per_s * hourly[second] - own[second].tokens_per_s * hourly[first]

        fixed, each = lead(0.0), lead(1.0) - lead(0.0)
        found = -fixed / each if each else -1.0
        return found if found > 0 else None

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
    """The two values in order, nearest to what it is here, between which the gain changes its sign."""
    pairs = [pair for pair in itertools.pairwise(points) if (pair[0].gain < 0) != (pair[1].gain < 0)]
    return min(
        pairs,
        key=lambda pair: min(abs(_number(each.value) - here) for each in pair),
        default=None,
    )
