"""The dynamic scenario is what the paper describes, iteration by iteration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Spec, Timing
from laminabench.systems.modelled.h2m2.mapping import BATCH, ITERATIONS, LONGEST, dynamic_trace


@given(seed=st.integers(0, 1000), iterations=st.integers(1, 300), batch=st.integers(1, 40))
def test_the_batch_is_full_from_the_first_iteration_to_the_last(
    seed: int, iterations: int, batch: int
) -> None:
    trace = dynamic_trace(seed, iterations, batch)
    flat = np.full(batch + 1, 1e-4)
    timing = Timing(flat, flat, flat, flat, flat * 1e-3)
    spec = Spec(2, timing, tokens_per_pool=batch * (LONGEST + iterations), max_requests=batch)
    rows = simulate(trace, spec, Offered(), check=True).iterations
    assert rows["size"].tolist() == [batch] * iterations


def test_lengths_and_ends_are_drawn_as_stated() -> None:
    traces = [dynamic_trace(seed) for seed in range(200)]
    prompts = np.concatenate([trace.prompt_tokens for trace in traces])
    assert prompts.min() >= 1
    assert prompts.max() <= LONGEST
    assert prompts.mean() == pytest.approx((1 + LONGEST) / 2, rel=0.02)
    # Each of a batch ends with each iteration but the last one with the same chance.
    ends = sum(len(trace) - BATCH for trace in traces)
    assert ends / (200 * BATCH * (ITERATIONS - 1)) == pytest.approx(1 / ITERATIONS, rel=0.03)


def test_a_seed_is_a_trace() -> None:
    assert dynamic_trace(3).prompt_tokens.tolist() == dynamic_trace(3).prompt_tokens.tolist()
    assert dynamic_trace(3).prompt_tokens.tolist() != dynamic_trace(4).prompt_tokens.tolist()
