"""Predictions of recorded runs, and the committed ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from laminabench.catalog.accuracy import board
from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.cost_terms import Origin
from laminabench.catalog.server_host import ServerHost
from laminabench.util.errors import UserError
from laminabench.workflows.validate import gate, published, recorded
from laminabench.workflows.validate.board import board_of, samples_of
from laminabench.workflows.validate.recording import Recording, names, packaged_recording

STORED = Path(__file__).parents[4] / "results" / "validation" / "validation.json"


@pytest.fixture(scope="module")
def judged() -> list[recorded.Judged]:
    return recorded.judged([packaged_recording(name) for name in names()])


def answered(recording: Recording, gap_s: float) -> Recording:
    """As the modelled cluster answers it."""
    times = recorded.predict(recording, recorded.with_gap(load_costs("vllm-0.19"), gap_s))
    first = recording.arrival_s + times.ttft
    return replace(recording, first_token_s=first, last_token_s=recording.arrival_s + times.latency)


def test_times_are_from_arrival_and_tpot_is_per_gap(made: Any) -> None:
    one = made()
    times = recorded.Times.of(one, one.first_token_s, one.last_token_s)
    assert times.ttft == pytest.approx(np.ones(40))
    assert times.tpot == pytest.approx(np.full(40, 0.02), rel=1e-3)
    assert times.latency == pytest.approx(1 + 0.02 * (one.output_tokens - 1), rel=1e-3)


def test_a_server_s_host_delays_what_its_client_has(made: Any) -> None:
    costs = load_costs("vllm-0.19")
    plain, late = (
        recorded.predict(made(about={"host": text}), costs).ttft for text in ("0ms", "0ms,in=20ms,out=30ms")
    )
    # Requests that come 20 ms later may meet another iteration.
    assert float(np.median(late - plain)) == pytest.approx(0.05, abs=0.01)
    with pytest.raises(UserError, match="host-unreadable"):
        recorded.predict(made(about={"host": "fast"}), costs)


def test_a_measured_server_has_its_own_host(made: Any) -> None:
    costs = load_costs("vllm-0.19")
    host = ServerHost(0.0, 0.0, Origin("measured", "here"), request_in_s=20e-3, out_s=30e-3)
    served = structs.replace(costs, server=host)
    # What was measured between its steps is what it did not hide.
    same = made(about={"host": "0ms,in=20ms,out=30ms", "host_async": False})
    assert recorded.predict(made(), served).ttft == pytest.approx(recorded.predict(same, costs).ttft)
    assert recorded.predict(same, served).ttft == pytest.approx(recorded.predict(same, costs).ttft)
    slower = recorded.predict(made(), recorded.with_gap(served, 1e-3))
    assert float(np.mean(slower.tpot - recorded.predict(made(), served).tpot)) == pytest.approx(
        1.1e-3, rel=0.2
    )


def test_a_request_of_one_token_has_no_tpot(made: Any) -> None:
    output = np.full(40, 5, np.int32)
    output[3] = 1
    one = made(output_tokens=output)
    times = recorded.Times.of(one, one.first_token_s, one.last_token_s)
    assert (len(times.ttft), len(times.tpot), len(times.latency)) == (40, 39, 40)
    assert np.isfinite(recorded.Judged(one, "", 0.0, times).errors()["tpot"]["by_request"])


def test_a_server_that_does_not_stream_is_refused(made: Any) -> None:
    one = made()
    with pytest.raises(UserError, match="validation-no-tpot"):
        recorded.judged([replace(one, first_token_s=one.last_token_s)])


def test_errors_are_of_means_points_and_requests(made: Any) -> None:
    one = made()
    times = recorded.Times.of(one, one.first_token_s, one.last_token_s)
    longer = recorded.Times(times.ttft * 1.02, times.tpot * 0.99, times.latency)
    errors = recorded.Judged(one, recorded.AS_MEASURED, 0.0, longer).errors()
    assert errors["ttft"] == pytest.approx({"mean": 2, "p50": 2, "p90": 2, "p99": 2, "by_request": 2})
    assert errors["tpot"]["mean"] == pytest.approx(-1)
    assert recorded.Judged(one, "", 0.0, longer).missed() == []
    far = replace(longer, latency=times.latency * 1.02, tpot=times.tpot * 1.03)
    assert recorded.Judged(one, "", 0.0, far).missed() == [
        "tpot",
        "latency",
        "tpot p50",
        "tpot p90",
        "tpot p99",
    ]


def test_the_time_between_steps_is_fitted_to_one_run_and_judged_on_another(made: Any) -> None:
    costs = load_costs("vllm-0.19")
    one, other = answered(made("one"), 0.5e-3), answered(made("other", about={"max_num_seqs": 16}), 0.5e-3)
    # The composition of batches depends on it, so latency does not grow evenly.
    assert recorded.gap_of(one, costs) == pytest.approx(0.5e-3, rel=0.1)
    rows = recorded.judged([one, other])
    assert [(row.recording.name, row.constants) for row in rows] == [
        ("one", recorded.AS_MEASURED),
        ("one", "other"),
        ("other", recorded.AS_MEASURED),
        ("other", "one"),
    ]
    for row in rows:
        error = row.errors()["latency"]["mean"]
        assert abs(error) < 0.3 if row.constants != recorded.AS_MEASURED else error < -0.5


def test_a_server_that_is_faster_than_the_tables_has_no_gap(made: Any) -> None:
    one = answered(made(), 0.0)
    sooner = replace(one, last_token_s=one.arrival_s + 0.9 * (one.last_token_s - one.arrival_s))
    assert recorded.gap_of(sooner, load_costs("vllm-0.19")) == 0


def test_batches_of_unequal_lengths_take_longer_than_their_mean(made: Any) -> None:
    """Of 32B on two cards, whose profile has them."""
    costs = load_costs("vllm-0.19")
    setup = {"model": "qwen3-32b", "deployment": "2xrtx-pro-6000", "max_num_seqs": 128, "kv_tokens": None}
    uneven = made(about=setup, prompt_tokens=np.tile([8000, 100, 100, 100], 10).astype(np.int32))
    even = replace(uneven, prompt_tokens=np.full(40, 2075, np.int32))
    slower, faster = (recorded.predict(each, costs).tpot.mean() for each in (uneven, even))
    assert slower > 1.01 * faster


def test_a_server_on_a_set_s_own_device_in_one_process_and_with_workers(made: Any, core_costs: str) -> None:
    set_up = {"model": "llama-tiny", "costs": core_costs, "prefix_caching": False}
    alone, split = (
        recorded.predict(made(about={**set_up, "deployment": each}), load_costs(core_costs))
        for each in ("1xhere", "1xhere+1xhere")
    )
    # The network is between.
    assert split.tpot.mean() > alone.tpot.mean() > 0


def test_no_mean_error_is_worse_than_the_stored_one(judged: list[recorded.Judged]) -> None:
    now = {
        "recorded": [each.describe() for each in judged],
        "published": [row.describe() for row in published.rows()],
    }
    assert [each for each in gate.moved(gate.read_stored(STORED), now) if each.worse] == []


def test_the_runs_that_met_their_targets_still_do(judged: list[recorded.Judged]) -> None:
    met = {each.recording.name for each in judged if not each.missed()}
    assert met >= {"rtx-4090-llama3.1-8b"}


def test_the_board_is_what_these_predictions_give(judged: list[recorded.Judged]) -> None:
    printed = published.with_other_sets(published.rows())
    own = board_of(samples_of(judged, printed, [], []))
    assert {each.costs for each in own} == {"vllm-0.19", "vllm-0.14", "vidur-2024"}
    assert [each for each in own if each not in board().cells] == []
