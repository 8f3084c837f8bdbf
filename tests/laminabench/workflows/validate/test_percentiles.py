"""Measured loads with medians and 99th percentiles."""

from __future__ import annotations

import numpy as np
import pytest

from laminabench.workflows.validate.board import board_of, samples_of
from laminabench.workflows.validate.percentiles import METRICS, Compared, compared, measured_loads
from laminabench.workflows.validate.serving import request_times


def test_every_load_has_six_times_in_order() -> None:
    assert len(measured_loads()) == 72
    for each in measured_loads():
        for metric in ("ttft", "tpot", "latency"):
            assert each.ms[f"{metric}, median"] < each.ms[f"{metric}, p99"]
        assert each.ms["ttft, p99"] < each.ms["latency, p99"]
        assert (each.load.server["version"], each.load.fit, each.load.off) == ("0.16.0", False, "")


def test_predictions_are_percentiles_of_a_replay_of_equal_lengths() -> None:
    first = min(measured_loads(), key=lambda each: (each.load.concurrency, each.load.prompt_tokens))
    assert set(first.load.trace().prompt_tokens.tolist()) == {first.load.prompt_tokens}
    times = request_times(None, first.load)
    assert len(times.ttft_s) == 10 * first.load.concurrency
    (same,) = compared([first])
    assert list(same.predicted) == list(METRICS)
    assert same.predicted["latency, p99"] == pytest.approx(1000 * np.percentile(times.latency_s, 99))
    assert same.predicted["tpot, median"] == pytest.approx(1000 * np.median(times.tpot_s))


def test_each_percentile_is_a_metric_of_its_own_on_the_board() -> None:
    load = measured_loads()[0]
    double = Compared(load.load, load.ms, {name: 2 * ms for name, ms in load.ms.items()})
    cells = board_of(samples_of([], [], [], [], [double]))
    assert {each.metric for each in cells} == set(METRICS)
    assert {each.median for each in cells} == {100.0}
