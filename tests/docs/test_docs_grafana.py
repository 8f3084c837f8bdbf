"""The Grafana dashboard is one that Grafana draws, of metrics that there are."""

from __future__ import annotations

import re

import numpy as np
from grafana import expressions, metrics_used

from laminabench.util.live_progress import Expected, FaultEvent, Gaps, Moment
from laminabench.workflows.replay.metrics_page import ReplayProgress


def test_a_live_replay_exports_requested_fields() -> None:
    observed = ReplayProgress({"trace": "azure-conv"})
    observed.expected = Expected(requests=1, kv_capacity_tokens=9)
    observed.take(
        Moment(
            at_s=1.0,
            finished=0,
            failed=0,
            requests=1,
            tokens=1,
            tokens_per_s=1.0,
            tbt_ms_p50=1.0,
            tbt_ms_p99=1.0,
            batch=1,
            waiting=0,
            kv_tokens=1,
        )
    )
    observed.take(Gaps(np.array([0.5, 100.0]), np.array([1, 2])))
    observed.take(FaultEvent(at_s=0.5, workers=(), why=""))
    samples = {sample.name: sample for family in observed.collect() for sample in family.samples}
    requested = metrics_used("laminabench_replay_")
    assert len(requested) > 10
    assert requested <= {*samples}
    assert samples["laminabench_replay_time_between_tokens_seconds_sum"].value == 200.5


def test_every_expression_is_about_ours() -> None:
    for expression in expressions():
        named = set(re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", re.sub(r"\{[^{}]*\}", "", expression)))
        named -= {"histogram_quantile", "label_values"}
        assert all(name.startswith(("lamina_", "laminabench_replay_")) for name in named)
        assert expression.count("(") == expression.count(")")
        assert expression.count("{") == expression.count("}")
