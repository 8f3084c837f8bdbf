"""Pictures of what was modelled beside what was measured."""

from __future__ import annotations

from pathlib import Path

from laminabench.render.static.validated import draw_serving
from laminabench.workflows.validate.serving import Judged, points


def test_loads_by_device_and_model(tmp_path: Path) -> None:
    results = [Judged(each, each.ttft_ms, 1.1 * each.tpot_ms) for each in points()[::40]]
    draw_serving([*results, Judged(points()[0], None, None, "no such device")], tmp_path / "serving.svg")
    text = (tmp_path / "serving.svg").read_text()
    for message in ("H200", "B200", "gpt-oss-120b", "measured TTFT in ms"):
        assert message in text
