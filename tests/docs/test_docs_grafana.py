"""The Grafana dashboard is one that Grafana draws, of metrics that there are."""

from __future__ import annotations

import itertools
import re

import numpy as np
from grafana import dashboard, expressions, metrics_used

from laminabench.util.live_progress import Expected, FaultEvent, Gaps, Moment
from laminabench.workflows.replay.metrics_page import ReplayProgress


def test_a_live_replay_exports_what_is_asked_of_it() -> None:
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


def test_panels_have_places_of_their_own() -> None:
    result = dashboard()
    panels = result["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        grid = panel["gridPos"]
        assert 0 <= grid["x"] < grid["x"] + grid["w"] <= 24
        assert grid["h"] > 0
        assert grid["y"] >= 0
        assert panel["title"]
        assert panel["description"]
    for one, other in itertools.combinations((panel["gridPos"] for panel in panels), 2):
        alongside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert alongside or below


def test_the_data_source_is_chosen_by_who_looks() -> None:
    result = dashboard()
    variables = {each["name"]: each["type"] for each in result["templating"]["list"]}
    assert variables["datasource"] == "datasource"
    sources = [part["datasource"]["uid"] for panel in result["panels"] for part in (panel, *panel["targets"])]
    assert set(sources) == {"${datasource}"}
    assert all(
        'instance=~"$instance"' in target["expr"] for panel in result["panels"] for target in panel["targets"]
    )
