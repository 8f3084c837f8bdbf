"""The picture of a sweep."""

from __future__ import annotations

from typing import Any

from laminabench.render.static.pictures import PANELS, sweep_picture


def row(**varied: Any) -> dict[str, Any]:
    return {**varied, "backend": "modelled", "trace.name": "a$b", **dict.fromkeys(PANELS, 2.0)}


def test_a_line_for_each_combination_of_the_others() -> None:
    rows = [
        row(system=system, batches=batches, x=batches)
        for system in ("lamina", "vllm")
        for batches in (1, 2, 3)
    ]
    failed = {"system": "vllm", "batches": 4, "x": 4, "backend": "modelled", "error": "does not fit"}
    figure = sweep_picture([*rows, failed], ["system", "batches"])
    for axes, title in zip(figure.axes, PANELS.values(), strict=True):
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("batches", title.replace("$", r"\$"))
        assert [line.get_xdata().tolist() for line in axes.get_lines()] == [[1, 2, 3], [1, 2, 3]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["system lamina", "system vllm"]


def test_a_line_goes_from_left_to_right_however_values_were_given() -> None:
    figure = sweep_picture([row(batches=3), row(batches=1), row(batches=2)], ["batches"])
    throughput = figure.axes[0]
    assert throughput.get_lines()[0].get_xdata().tolist() == [1, 2, 3]
    assert all(tick == round(tick) for tick in throughput.get_xticks())


def test_names_go_along_x_where_nothing_is_a_number() -> None:
    rows = [row(system="lamina"), row(system="vllm")]
    rows[1]["cost.usd_per_million_tokens"] = None
    figure = sweep_picture(rows, ["system"])
    throughput, _, cost = figure.axes
    assert list(throughput.get_lines()[0].get_xdata()) == ["lamina", "vllm"]
    assert list(cost.get_lines()[0].get_xdata()) == ["lamina"]
    assert not figure.legends
