"""Arrival times for traces that have none, or that shall come at another rate."""

from __future__ import annotations

import numpy as np

from laminabench.traces.table import Float64


def poisson_like(requests: int, rate_per_s: float, burstiness: float, seed: int) -> Float64:
    """Arrivals at a mean rate: Poisson for burstiness 1, gamma gaps of that shape otherwise.

    As in vLLM's benchmark, burstiness is the gamma's shape: below 1 is burstier, above 1 more even.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    # Absurd rates give absurd times, infinite or NaN among them: whoever asked checks the span.
    with np.errstate(all="ignore"):
        gaps = random.gamma(burstiness, np.divide(1.0, rate_per_s * burstiness), requests)
        gaps[0] = 0.0
        # To the microsecond: the last bits of a logarithm differ between machines.
        arrival_s: Float64 = np.round(np.cumsum(gaps), 6).astype(np.float64)
    return arrival_s
