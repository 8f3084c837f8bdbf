"""A trace's demand, sorted and summed beforehand, so that a bound is a few look-ups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laminabench.sim.spec import Float64
from laminabench.traces.table import Trace
from laminabench.workflows.plan.prompt_demand import PromptDemand, largest, prompt_demand_of
from laminabench.workflows.plan.tables import Lengths


class FractionalKnapsack:
    """The most value of items with a total weight, of which one may be fractional."""

    def __init__(self, weight: Float64, value: Float64) -> None:
        order = np.argsort(-value / weight, kind="stable")
        self._weight = np.concatenate([[0.0], np.cumsum(weight[order])])
        self._value = np.concatenate([[0.0], np.cumsum(value[order])])

    def most(self, weight: float) -> float:
        return float(np.interp(weight, self._weight, self._value))


@dataclass(frozen=True)
class Demand:
    """Sums over all requests, and over the worst subsets of them.

    `charge` is a request's final length in complete blocks plus `request_tokens`; its retained tokens are the
    least that are charged while it decodes: all of its charge with reservation. `read` is the KV tokens that
    its tokens read together.

    With prompts, `tokens` are those that are made by decoding: the first one of each request is not.
    """

    requests: int
    tokens: float
    firsts: int  # requests whose first token is one of `tokens`
    charged: float  # retained times tokens: memory used over time
    read: float
    request_tokens: int  # tokens charged for each request besides its own
    longest: int  # charge
    lengths: Lengths
    shortest_mean: tuple[float, float]  # least retained tokens, and least KV length, of any token
    span_s: float  # from the first arrival to the last
    by_charge: tuple[Float64, Float64, Float64]  # from the largest down: charges; sums of tokens, of charged
    charge_sums: Float64  # from the largest down
    smallest_sums: Float64  # of retained tokens, from the smallest up
    # The most that requests lack which together retain so many tokens.
    missing_tokens: FractionalKnapsack
    missing_kv: FractionalKnapsack  # final length times tokens
    # Tokens, and final length times tokens, of the hundredth of requests that have the most of each.
    late: tuple[float, float]
    last_tokens: float  # of requests that come so late that they may still wait when the last one comes
    dense_charged: FractionalKnapsack  # beyond the mean, to bound a mean that they are missing from
    dense_read: FractionalKnapsack
    prompts: PromptDemand | None = None  # where they are computed

    @property
    def rate(self) -> float:
        """Tokens a second in demand."""
        every = self.tokens + (self.requests - self.firsts)
        return every / self.span_s if self.span_s > 0 else float("inf")

    def can_run(self, capacity: float) -> int:
        """Return the requests that so much memory can ever hold at once."""
        return int(np.searchsorted(self.smallest_sums, capacity, side="right"))

    def mean_charge(self, capacity: float) -> float:
        """Return the least mean, over tokens, of their requests' charges, for any requests still running."""
        return self._mean(self.charged, self.dense_charged, capacity, self.shortest_mean[0])

    def mean_read(self, capacity: float) -> float:
        """Return the least mean of the KV tokens that a token reads."""
        return self._mean(self.read, self.dense_read, capacity, self.shortest_mean[1])

    def _mean(self, total: float, dense: FractionalKnapsack, capacity: float, least: float) -> float:
        done = self.tokens - self.missing_tokens.most(capacity)
        return least if done <= 0 else max(least, total / self.tokens - dense.most(capacity) / done)

    def taken(self, tokens: float, full: float, most_requests: int) -> tuple[float, float, float]:
        """Return the most shares of a full cycle, given tokens, all tokens and all requests once.

        A cycle is full when charges add up to `full`, or when it has so many requests: a request takes the
        larger share of the two.
        """
        charges, counts, sums = self.by_charge
        large = int(np.searchsorted(-charges, -full / most_requests, side="right"))

        def share(some: float) -> float:
            if some <= counts[large]:
                return float(np.interp(some, counts, sums)) / full
            return float(sums[large] / full + (some - counts[large]) / most_requests)

        once = self.charge_sums[large] / full + (self.requests - large) / most_requests
        return share(tokens), share(self.tokens), float(once)

    def largest_read(self, tokens: float) -> float:
        """Return the final length times tokens, of so many tokens of the requests that are charged most."""
        _, counts, sums = self.by_charge
        return float(np.interp(tokens, counts, sums)) - self.request_tokens * tokens


def demand_of(
    trace: Trace,
    block_tokens: int,
    request_tokens: int = 0,
    waiting_s: float = 0.0,
    *,
    prompts: bool = False,
) -> Demand:
    """Return the demand with charges in blocks of that size, reserved, and with waits up to `waiting_s`.

    With prompts that are computed, KV grows and prefixes may be shared.
    """
    prompt, output = (tokens.astype(np.float64) for tokens in (trace.prompt_tokens, trace.output_tokens))
    kv = np.ceil((prompt + output) / block_tokens) * block_tokens
    extra = -(-request_tokens // block_tokens) * block_tokens
    charge = kv + extra
    prompt_demand = prompt_demand_of(trace, waiting_s) if prompts else None
    retained = charge if prompt_demand is None else prompt_demand.unshared + extra
    made = output if prompt_demand is None else output - 1
    charged = made * retained
    read = made * (prompt + (made - 1) / 2)
    tokens = float(made.sum())
    down = np.argsort(-charge, kind="stable")
    mean_charged, mean_read = (values.sum() / max(tokens, 1.0) for values in (charged, read))
    return Demand(
        requests=len(trace),
        tokens=tokens,
        firsts=0 if prompts else len(trace),
        charged=float(charged.sum()),
        read=float(read.sum()),
        request_tokens=extra,
        longest=int(charge.max()),
        lengths=Lengths(float(prompt.min()), float(kv.max())),
        shortest_mean=(float(retained.min()), float(prompt.min())),
        span_s=float(trace.arrival_s[-1] - trace.arrival_s[0]),
        by_charge=(charge[down], _sums(made[down]), _sums((made * charge)[down])),
        charge_sums=_sums(charge[down]),
        smallest_sums=np.cumsum(np.sort(retained)),
        missing_tokens=FractionalKnapsack(retained, made),
        missing_kv=FractionalKnapsack(retained, made * kv),
        late=(largest(made), largest(made * kv)),
        last_tokens=float(made[trace.arrival_s > trace.arrival_s[-1] - waiting_s].sum()),
        dense_charged=FractionalKnapsack(retained, made * np.maximum(retained - mean_charged, 0)),
        # Of a request's tokens the last ones are missing, which read nearly all that it ever has.
        dense_read=FractionalKnapsack(retained, made * np.maximum(kv - mean_read, 0)),
        prompts=prompt_demand,
    )


def _sums(values: Float64) -> Float64:
    sums: Float64 = np.concatenate([[0.0], np.cumsum(values)])
    return sums
