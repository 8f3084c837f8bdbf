"""A profile: what is known of a trace, small enough to commit, enough to make requests like its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from laminabench.traces.compare import Comparison

if TYPE_CHECKING:
    from laminabench.traces.table import Float64

# fitted: from the rows of the real file. moment-matched: another profile's shape with published means.
# digitised: from published plots. parametric: from published statements.
Method = Literal["fitted", "moment-matched", "digitised", "parametric"]


class Quantiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A distribution as a table: `values[i]` at rank `ranks[i]`, straight lines in between."""

    ranks: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, ranks: Float64) -> Float64:
        """The values at these ranks in [0, 1).

        Not np.interp: a compiler may fuse its multiplication and addition on one machine and not on another.
        """
        knots, values = np.array(self.ranks), np.array(self.values)
        slopes = np.diff(values) / np.diff(knots)
        below = np.minimum(np.searchsorted(knots, ranks, side="right") - 1, len(slopes) - 1)
        above_knot: Float64 = ranks - knots[below]
        above_knot *= slopes[below]
        above_knot += values[below]
        return above_knot

    def mean(self) -> float:
        values = np.array(self.values)
        return float((np.diff(self.ranks) * (values[1:] + values[:-1])).sum() / 2)

    def scaled(self, factor: float) -> Quantiles:
        return Quantiles(self.ranks, tuple(value * factor for value in self.values))


class FittedTo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the numbers come from."""

    source: str
    sha256: str
    rows: int


class Arrivals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests in each of equal bins of time, and how uneven they are inside a bin."""

    bin_s: float
    # The last bin ends here, with the trace.
    duration_s: float
    counts: tuple[int, ...]
    # Gaps between arrivals over the mean gap of their bin.
    gaps: Quantiles


class Reuse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How prompts repeat the beginnings of earlier ones, by size of the prompt.

    A request starts afresh (it shares `root_blocks` with everybody), continues an earlier request (all full
    blocks of its prompt, and each request is continued once: the next turn of a conversation), or branches
    off the middle of one. Class c of C holds the prompts between ranks c/C and (c+1)/C.
    """

    root_blocks: int
    continues: tuple[float, ...]
    branches: tuple[float, ...]
    # Per class, the share of a request's blocks that are new, at equally spaced ranks from 0 to 1.
    continue_fresh: tuple[tuple[float, ...], ...]
    branch_fresh: tuple[tuple[float, ...], ...]
    # Seconds since the request that is continued or branched from.
    continue_lag_s: Quantiles
    branch_lag_s: Quantiles
    # Share of branches that leave where others left before.
    rejoins: float


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the generator needs, and how well it did when it was fitted."""

    name: str
    method: Method
    note: str
    requests: int
    fitted_to: FittedTo
    prompt: Quantiles
    output: Quantiles
    # copula[i][j]: requests whose prompt rank is in the i-th and output rank in the j-th of equal parts.
    copula: tuple[tuple[int, ...], ...]
    arrivals: Arrivals | None = None
    reuse: Reuse | None = None
    block_tokens: int = 512
    errors: Comparison | None = None
