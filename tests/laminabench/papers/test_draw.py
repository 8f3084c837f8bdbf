"""A plot as data becomes a picture: what each kind of layer draws, and where panels and legends are."""

from __future__ import annotations

from typing import Any

import msgspec
import pandas as pd
import pytest

from laminabench.papers.draw import Plot
from laminabench.render import style

FRAME = pd.DataFrame(
    [(way, x, costs, x + number + costs, 2 * number) for way, number in (("a", 1), ("b", 2)) for x in (4, 8)
     for costs in (0, 2)],
    columns=["way", "x", "costs", "y", "z"],
)  # fmt: skip


def picture(*layers: dict[str, Any], values: dict[str, Any] | None = None, **plot: Any) -> Any:
    panel = {"layers": layers, **plot.pop("panel", {})}
    drawn = msgspec.convert({"height": 3.0, "panels": [panel], **plot}, Plot)
    with style.look():
        return drawn.picture({"": FRAME}, {"stated": {"claim": 7.0, "range": (5.0, 6.0)}, **(values or {})})


def test_lines_are_means_with_their_spread_and_a_rule_is_a_published_value() -> None:
    lines = {"kind": "lines", "x": "x", "y": "y", "by": ["way"], "label": "way {way}", "spread": "band"}
    rule = {"kind": "rule", "at": "claim", "label": "published: {at}"}
    figure = picture({**lines, "colours": {"b": "green"}}, rule, {"kind": "rule", "at": "range"}, legend={})
    (axes,) = figure.axes
    first, second, published = axes.get_lines()
    assert list(first.get_ydata()) == [6, 10]
    assert (first.get_color(), second.get_color()) == (style.CYCLE[0], style.GREEN)
    assert list(published.get_ydata()) == [7, 7]
    assert axes.collections[0].get_datalim(axes.transData).bounds == (4, 5, 4, 6)
    assert [text.get_text() for text in figure.legends[0].texts] == ["way a", "way b", "published: 7.0"]


def test_bars_are_adjacent_and_stacks_on_each_other() -> None:
    bars = {"kind": "bars", "x": "x", "y": "y", "by": ["way"], "label": "{way}", "places": [8, 4]}
    heights = [bar.get_height() for bar in picture(bars).axes[0].patches]
    assert heights == [10, 6, 11, 7]
    stack = {"kind": "stack", "x": "x", "parts": {"y": "blue", "z": "green"}, "whole": "y"}
    drawn = picture({**stack, "where": {"way": "!a"}}).axes[0].patches
    assert [(bar.get_y(), bar.get_height()) for bar in drawn] == [(0, 7), (0, 11), (7, 4), (11, 4)]


@pytest.mark.parametrize("wrong", [{"kind": "line"}, {"kind": "lines", "colour": "blue"}])
def test_an_unknown_layer_or_field_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        picture(wrong)
