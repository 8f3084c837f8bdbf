"""The chart of cost against time between tokens, on a page and as a picture."""

from __future__ import annotations

import pytest

from laminabench.render.charts.cost import cost_chart
from laminabench.render.sections import curves
from laminabench.render.static.pictures import cost_picture
from laminabench.workflows.compare.curves import Curve, CurvePoint


def point(batch: int, tbt_ms: float, dollars: float) -> CurvePoint:
    return CurvePoint(batch, batch, tbt_ms / 1000, tbt_ms / 1100, dollars, 1000.0 * batch, 100)


FAST = Curve("vllm", "4xh100", 0.1, (point(8, 20, 6.0), point(64, 40, 1.5)))
SLOW = Curve("lamina", "2xh100+4xh20", None, (point(8, 60, 5.0), point(64, 130, 1.2)))
NAMED = [("vllm 4xh100", FAST), ("lamina <b>", SLOW)]


def test_each_curve_has_its_error_and_its_best_within_the_limit() -> None:
    chart = cost_chart(NAMED, 100)
    band, bar, first, second, ring = chart.traces
    assert band["fill"] == "toself"
    assert band["x"] == pytest.approx([20 / 1.1, 40 / 1.1, 44, 22], rel=1e-5)
    assert bar["y"] == pytest.approx([1.5 / 1.1, 1.65], rel=1e-5)
    assert (first["x"], first["y"]) == ([20, 40], [6, 1.5])
    assert second["name"] == "lamina &lt;b&gt;"
    assert (ring["x"], ring["y"]) == ([40, 60], [1.5, 5])
    assert chart.layout["shapes"][0]["x0"] == 100
    assert "vllm 10.0%, not known of lamina" in chart.note
    assert "lamina 2xh100+4xh20 is within the limit with at most 8 requests at once." in chart.note
    assert "vllm 4xh100 is within" not in chart.note
    assert "cheapest within 100 ms: $5 at 60 ms" in chart.alt
    assert "cheapest within 10 ms: nothing" in cost_chart(NAMED, 10).alt


def test_the_limit_is_on_the_chart_and_useless_load_is_not() -> None:
    assert cost_chart(NAMED, 500).layout["xaxis"]["range"][1] > 500
    overloaded = Curve("h2m2", "1xh2m2", None, (point(8, 80, 3.0), point(64, 900, 4.0)))
    assert cost_chart([("h2m2", overloaded)], 50).layout["xaxis"]["range"][1] < 100


def test_a_page_and_a_picture_have_the_same_chart() -> None:
    section = curves(NAMED, 100)
    assert [each.key for each in section.charts] == ["curves"]
    assert "<details><summary>Points of the curves" in section.html()
    figure = cost_picture(NAMED, 100, "one $ or the other")
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        "vllm 4xh100",
        "lamina <b>",
        "cheapest within the limit",
        "limit, 100 ms",
    }
