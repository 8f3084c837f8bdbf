"""Pictures of charts: what a page's chart has, its picture has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from view_things import CANDIDATES, keep_plan, keep_validation

from laminabench.render.charts.over_time import rate_chart, tbt_chart
from laminabench.render.charts.validation import published_chart, twin_charts
from laminabench.render.shown import shown
from laminabench.render.static.drawn import drawn
from laminabench.render.static.pictures import column, errors_picture, plan_picture, replay_picture
from laminabench.runs.read import Run
from laminabench.runs.summary import FaultCost, Resumed
from laminabench.util.errors import UserError
from laminabench.workflows.plan.stored import StoredPlan, read_plan
from laminabench.workflows.validate.stored import read_validation


@pytest.fixture
def plan(tmp_path: Path) -> StoredPlan:
    return read_plan(keep_plan(tmp_path / "plan"))


def labels(figure: Any) -> set[str]:
    return {text.get_text() for text in figure.legends[0].get_texts()}


def test_a_plan_has_a_panel_for_each_cost_set(plan: StoredPlan) -> None:
    few = structs.replace(plan.answers[0], costs="b$c", replayed=plan.answers[0].replayed[:1])
    figure = plan_picture(structs.replace(plan, answers=[*plan.answers, few]))
    assert [axes.get_title() for axes in figure.axes] == ["vllm-0.14", "b$c"]
    systems = {each[1] for each in CANDIDATES}
    assert labels(figure) == {*systems, "misses a limit", "front", "winner", "limit, 100 ms"}
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}


def test_a_replay_has_its_faults_and_interruptions(keep: Callable[..., Run]) -> None:
    untold = dict.fromkeys(("detection_s", "normal_again_s", "tbt_worst_ms", "goodput_lost_tokens"))
    fault = FaultCost(workers=[], why="", struck=[], noticed_s=1.2, recovery_s=0.1, **untold)
    resumed = Resumed(times=1, at_s=[0.3])
    run = keep(live=True, faults=[fault, fault], resumed=resumed)
    figure = column([rate_chart(shown([run])), tbt_chart(shown([run]))], "a $name$ [of] somebody's")
    assert figure.get_suptitle() == "a $name$ [of] somebody's"
    assert {"limit 60 ms", "fault, until iterations resume", "resumed"} < labels(figure)
    spans = [patch for patch in figure.axes[0].patches if patch.get_alpha() == pytest.approx(0.35)]
    assert [span.get_x() for span in spans] == [1.2, 1.2]
    assert "resumed" not in labels(replay_picture(keep(), "calm"))


def test_lines_are_the_charts(keep: Callable[..., Run]) -> None:
    run = keep()
    chart, figure = rate_chart(shown([run])), replay_picture(run, "one")
    (line,) = figure.axes[0].get_lines()
    assert line.get_ydata() == pytest.approx(chart.traces[0]["y"])
    assert len(replay_picture(keep(prefill=True), "one").axes) == 3


def test_errors_have_targets_behind_them(tmp_path: Path) -> None:
    saved = read_validation(keep_validation(tmp_path))
    charts = [published_chart(saved.published), *twin_charts(saved.twin)]
    figure = errors_picture(charts)
    assert {"target", "missed"} <= labels(figure)
    for axes, chart in zip(figure.axes, charts, strict=True):
        widths = [bar.get_width() for bar in axes.patches]
        assert widths == pytest.approx([each for t in chart.traces if t["type"] == "bar" for each in t["x"]])
        assert np.isfinite(axes.get_xlim()).all()


def test_a_kind_of_picture_that_there_is_not(tmp_path: Path, plan: StoredPlan) -> None:
    with pytest.raises(UserError, match="picture-suffix"):
        drawn(lambda: plan_picture(plan), tmp_path / "one.txt")
