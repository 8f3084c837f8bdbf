"""A comparison's results with each input at the ends of its range, and where it flips."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from laminabench.util.json import Json
from laminabench.workflows.sensitivity.inputs import Input, Value


@dataclass(frozen=True, slots=True)
class Point:
    """The results of both systems with one input at one value."""

    value: Value
    gain: float  # tokens a dollar of the first over those of the second, less one
    tokens_per_s: Mapping[str, float]
    tbt_ms: Mapping[str, float]  # p50
    tbt_p99_ms: Mapping[str, float]
    usd_per_hour: Mapping[str, float]
    rejected: int  # requests that do not fit any more

    def row(self) -> dict[str, Json]:
        return {
            "value": self.value,
            "gain_per_dollar": self.gain,
            "throughput_tokens_per_s": dict(self.tokens_per_s),
            "tbt_ms": dict(self.tbt_ms),
            "tbt_p99_ms": dict(self.tbt_p99_ms),
            "usd_per_hour": dict(self.usd_per_hour),
            "rejected": self.rejected,
        }


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The value at which a dollar buys as many tokens of both, if any was searched."""

    value: float | None
    searched: tuple[float, float] | None  # None where every value was looked at: it was solved for


@dataclass(frozen=True, slots=True)
class Bar:
    """One input's part of the answer."""

    input: Input
    ends: tuple[Point, ...]  # the low and the high one; of choices all that are possible
    break_even: BreakEven | None  # None for choices
    here: float  # the gain with everything as it is
    impossible: Mapping[Value, str] = field(default_factory=dict)  # a sentence each

    @property
    def gains(self) -> tuple[float, float]:
        """The lowest and the highest."""
        every = [self.here, *(end.gain for end in self.ends)]
        return min(every), max(every)

    @property
    def span(self) -> float:
        low, high = self.gains
        return high - low

    def row(self) -> dict[str, Json]:
        varied, even = self.input, self.break_even
        return {
            "input": varied.name,
            "title": varied.title,
            "systems": list(varied.of),
            "unit": varied.unit,
            "here": varied.here,
            "ends": [end.row() for end in self.ends],
            "span": self.span,
            "break_even": None if even is None else even.value,
            "searched": None if even is None or even.searched is None else list(even.searched),
            "within_range": self.within_range,
            "source": varied.source,
            "kind": varied.kind,
            "impossible": {str(value): why for value, why in self.impossible.items()},
        }

    @property
    def within_range(self) -> bool | None:
        """Whether it flips within the range; None where it does not flip, or is no number."""
        if self.break_even is None or self.break_even.value is None:
            return None
        low, high = self._range()
        return low <= self.break_even.value <= high

    @property
    def flips(self) -> str:
        """The value at which the gain becomes none, in words."""
        even, varied = self.break_even, self.input
        if even is None:
            turned = [varied.text(end.value) for end in self.ends if (end.gain < 0) != (self.here < 0)]
            return f"with {' or '.join(turned)}" if turned else "never"
        if even.value is not None:
            return f"at {varied.text(even.value)}" + ("" if self.within_range else ", outside")
        if even.searched is None:
            return "never"
        low, high = map(varied.text, even.searched)
        return f"not from {low.removesuffix(f' {varied.unit}')} to {high}"

    def _range(self) -> tuple[float, float]:
        numbers = [value for value in (self.input.here, *self.input.values) if not isinstance(value, str)]
        return min(numbers), max(numbers)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The sensitivity to all inputs."""

    systems: tuple[str, str]  # the gain is the first one's over the second
    base: Point
    bars: list[Bar]  # from the one that spans most
    deployments: Mapping[str, str]
    unsteady: tuple[str, ...]  # systems that have too few requests for a steady window
    replays: int

    def row(self) -> dict[str, Json]:
        base = self.base.row()
        del base["value"]
        return {
            "systems": list(self.systems),
            "deployment": dict(self.deployments),
            **base,
            "unsteady": list(self.unsteady),
            "inputs": [bar.row() for bar in self.bars],
            "replays": self.replays,
        }
