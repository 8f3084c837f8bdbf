"""Pictures of what was modelled beside what was measured."""

from __future__ import annotations

from pathlib import Path

from laminabench.analysis.estimate import Estimate
from laminabench.render.static.validated import draw_serving, draw_twins
from laminabench.workflows.validate.serving import Judged, points
from laminabench.workflows.validate.twin import Twin


def test_twins_with_and_without_rounds_and_prompts(tmp_path: Path) -> None:
    measured = {"tokens/s": Estimate(10.0, 0.01, 2), "TBT p50": Estimate(30.0, None)}
    predicted = {"tokens/s": 10.3, "TBT p50": 29.0}
    found = [
        Twin("a", "1xhere", "azure-conv", measured, predicted),
        Twin(
            "b",
            "1xhere+1xhere",
            "azure-conv",
            {**measured, "TTFT p50": Estimate(9.0)},
            {**predicted, "TTFT p50": 9.1},
        ),
    ]
    draw_twins(found, tmp_path / "twins.svg")
    text = (tmp_path / "twins.svg").read_text()
    for said in ("azure-conv: 1xhere+1xhere", "TTFT p50", "error in %"):
        assert said in text


def test_loads_by_device_and_model(tmp_path: Path) -> None:
    found = [Judged(each, each.ttft_ms, 1.1 * each.tpot_ms) for each in points()[::40]]
    draw_serving([*found, Judged(points()[0], None, None, "no such device")], tmp_path / "serving.svg")
    text = (tmp_path / "serving.svg").read_text()
    for said in ("H200", "B200", "gpt-oss-120b", "measured TTFT in ms"):
        assert said in text
