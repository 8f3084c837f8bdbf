"""Copies of a deployment side by side: each replays its share as if alone, and the whole is all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_outcome import trace_of

from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Fleet, Mode, Spec, Timing
from laminabench.sim.timeline import bubbles, lanes_of
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError

ROWS, MOST, COPIES = 61, 6, 4


@pytest.fixture
def trace() -> Trace:
    rng = np.random.default_rng(5)
    arrival = np.sort(rng.uniform(0, 0.02, ROWS))
    return trace_of(rng.integers(1, 40, ROWS), rng.integers(1, 30, ROWS), arrival - arrival[0])


@pytest.fixture
def spec() -> Spec:
    """Memory so tight that requests wait, and with `grow` make room for each other."""
    sizes = np.arange(MOST + 1, dtype=np.float64)
    timing = Timing(
        1e-4 + 1e-5 * sizes, 2e-4 + 1e-5 * sizes, 1e-4 + 0 * sizes, 5e-5 * sizes, 1e-6 + 0 * sizes
    )
    return Spec(
        3,
        replace(timing, host_fixed=1e-4),
        tokens_per_pool=120,
        max_requests=MOST,
        admission="grow",
        replica_names=("board",),
        shared_devices=True,
        copies=COPIES,
    )


def alone(trace: Trace, spec: Spec, offered: Offered, copy: int) -> Outcome:
    rows = np.arange(copy, len(trace), COPIES)
    share = trace_of(trace.prompt_tokens[rows], trace.output_tokens[rows], trace.arrival_s[rows])
    return simulate(share, replace(spec, copies=1), offered, check=True)


def of_batch(columns: dict[str, Any], batch: int) -> dict[str, list[Any]]:
    own = columns["batch"] == batch
    return {name: column[own].tolist() for name, column in columns.items() if name != "batch"}


@pytest.mark.parametrize(("mode", "concurrency"), [("saturate", 0), ("open", 0), ("closed", 10)])
def test_each_copy_replays_every_fourth_request_as_if_alone(
    trace: Trace, spec: Spec, mode: Mode, concurrency: int
) -> None:
    whole = simulate(trace, spec, Offered(mode, concurrency), check=True)
    shares = [
        alone(trace, spec, Offered(mode, concurrency // COPIES + (copy < concurrency % COPIES)), copy)
        for copy in range(COPIES)
    ]
    assert sum(each.requests["preemptions"].sum() for each in shares) >= 4
    for copy, share in enumerate(shares):
        own = {name: column[copy::COPIES].tolist() for name, column in whole.requests.items()}
        assert own.pop("batch") == [copy] * len(share.requests["batch"])
        assert own == {name: c.tolist() for name, c in share.requests.items() if name != "batch"}
        assert of_batch(whole.iterations, copy) == of_batch(share.iterations, 0)
        stints = of_batch(whole.stints, copy)
        assert {row % COPIES for row in stints["request"]} <= {copy}
        stints["request"] = [row // COPIES for row in stints["request"]]
        assert stints == of_batch(share.stints, 0)
    assert whole.iterations["start_s"].tolist() == sorted(whole.iterations["start_s"].tolist())
    assert whole.iterations["size"].sum() == trace.output_tokens.sum()
    assert whole.end_s == max(share.end_s for share in shares)
    assert whole.queue_empty_s == min(share.queue_empty_s for share in shares)
    assert whole.kv_capacity_tokens == COPIES * 120
    assert whole.peak_kv_tokens == sum(share.peak_kv_tokens for share in shares)
    assert whole.replica_busy_s.tolist() == [share.replica_busy_s[0] for share in shares]
    assert whole.attention_busy_s == pytest.approx(sum(share.attention_busy_s for share in shares))


def test_a_policy_is_asked_about_rows_of_the_whole_trace(trace: Trace, spec: Spec) -> None:
    outputs = trace.output_tokens.tolist()
    requested: set[int] = set()

    def shortest(request: int) -> int:
        requested.add(request)
        return int(outputs[request])

    whole = simulate(trace, spec, Offered(priority=shortest))
    assert requested == set(range(ROWS))
    for copy in range(COPIES):
        own = outputs[copy::COPIES]
        share = alone(trace, spec, Offered(priority=own.__getitem__), copy)
        assert whole.requests["finished_s"][copy::COPIES].tolist() == share.requests["finished_s"].tolist()


def test_with_fewer_requests_than_copies_some_idle(trace: Trace, spec: Spec) -> None:
    whole = simulate(trace.first(2), spec, Offered(), check=True)
    assert whole.requests["batch"].tolist() == [0, 1]
    assert (whole.replica_busy_s > 0).tolist() == [True, True, False, False]
    assert whole.kv_capacity_tokens == COPIES * 120


def test_concurrency_is_split_and_has_to_suffice(trace: Trace, spec: Spec) -> None:
    whole = simulate(trace, replace(spec, tokens_per_pool=10_000, admission="reserve"), Offered("closed", 6))
    largest = [
        int(whole.iterations["size"][whole.iterations["batch"] == copy].max()) for copy in range(COPIES)
    ]
    assert largest == [2, 2, 1, 1]
    with pytest.raises(UserError, match="deployment-too-few-requests"):
        simulate(trace, spec, Offered("closed", 3))


def test_progress_counts_on_from_copy_to_copy(trace: Trace, spec: Spec) -> None:
    messages: list[int] = []
    simulate(trace, spec, Offered(), progress=messages.append, threads=1)
    assert messages == [0, 16, 31, 46, ROWS]


def test_a_window_is_recorded_of_every_copy_in_a_lane_of_its_own(trace: Trace, spec: Spec) -> None:
    whole = simulate(trace, spec, Offered(), record_s=(0.0, 0.02))
    lanes = lanes_of(whole, Fleet((spec,)))
    assert lanes.names == ("board 0", "board 1", "board 2", "board 3")
    assert (lanes.of == whole.timeline["batch"]).all()
    assert set(whole.timeline["worker"].tolist()) == {-1, 0, 1, 2, 3}
    idle = bubbles(whole, lanes)
    # What a board does not compute is its host's time: it works on one iteration after the other.
    assert all(share is not None and 0 < share < 0.5 for share in idle.values())
