"""A number and its uncertainty: exact where it was modelled, with an interval where it was measured.

Intervals are Student's t on the logarithm, as numbers here are positive and compared by their ratios. Samples
are rounds (Runs of the same thing) where there are several: a single Run does not show what differs between
starts. The spread of a single Run is the bootstrap's, with its blocks as degrees of freedom: by itself a
bootstrap gives intervals that are too narrow (Hesterberg 2015, 3.2).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from laminabench.analysis.bootstrap import BLOCKS
from laminabench.sim.spec import Float64

CONFIDENCE = 0.95
# Two-sided 95 % points of Student's t for 1 to 30 degrees of freedom; beyond, the last is on the safe side.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class Interval(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A positive number, the standard error of its logarithm, and the degrees of freedom behind that."""

    value: float | None
    error: float | None = 0.0  # 0 if exact; None if unknown
    freedom: float = math.inf

    @property
    def exact(self) -> bool:
        """Whether it was modelled, or derived only from modelled numbers."""
        return self.freedom == math.inf and self.error is not None

    @property
    def interval(self) -> Interval | None:
        """The confidence interval; None of an exact number, and of one whose spread is not known."""
        if self.value is None or self.error is None or self.exact:
            return None
        reach = math.exp(_T[min(int(self.freedom), len(_T)) - 1] * self.error)
        return Interval(self.value / reach, self.value * reach)


UNKNOWN = Estimate(None, None)


def of_resamples(value: float | None, resampled: Float64 | None) -> Estimate:
    """Return the estimate of a measured Run's number, from its resamples if there are any."""
    if value is None or resampled is None or not (resampled > 0).all():
        return Estimate(value, None)
    # Resamples of so few blocks spread less than the blocks do.
    error = float(np.log(resampled).std()) * math.sqrt(BLOCKS / (BLOCKS - 1))
    return _measured(value, error, BLOCKS - 1)


def of_rounds(values: Sequence[float | None]) -> Estimate:
    """Return the geometric mean of at least two rounds; their plain mean, with no interval, if one is 0."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return UNKNOWN
    if min(known) <= 0:
        return Estimate(statistics.fmean(known), None)
    logs = [math.log(value) for value in known]
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return _measured(math.exp(statistics.fmean(logs)), error, len(logs) - 1)


def ratio(to: Estimate, base: Estimate) -> Estimate:
    """Return the ratio of two independent estimates (Welch and Satterthwaite's degrees of freedom)."""
    if to.value is None or not base.value:
        return UNKNOWN
    value = to.value / base.value
    if to.error is None or base.error is None:
        return Estimate(value, None)
    parts = [(each.error or 0.0) ** 2 for each in (to, base)]
    error = math.sqrt(sum(parts))
    spread = sum(part**2 / each.freedom for part, each in zip(parts, (to, base), strict=True))
    fewest = min(to.freedom, base.freedom)
    return Estimate(value, error, max(fewest, sum(parts) ** 2 / spread) if spread else fewest)


def _measured(value: float, error: float, freedom: float) -> Estimate:
    """Return an estimate; samples that are all equal (as all tokens in time) give no interval."""
    return Estimate(value, error, freedom) if error else Estimate(value, None)
