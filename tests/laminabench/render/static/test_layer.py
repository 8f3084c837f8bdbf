"""The picture of a slice has the boxes, the order and the bytes that it should, and boxes do not overlap."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from laminabench.catalog.small_models import SMALL_MODELS
from laminabench.conversion.source import ModelSource
from laminabench.render.static.fold import Folded, fold
from laminabench.render.static.layer import box_width, draw_slice, rows_of
from laminabench.render.static.layered import lay_out
from laminabench.util.errors import UserError

pytest.importorskip("torch")
pytest.importorskip("transformers")

Report = dict[str, Any]


def of(name: str) -> Report:
    from laminabench.conversion.report import report

    config = dict(SMALL_MODELS[name]) | {"num_hidden_layers": 2}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:2]
    return report(ModelSource(name, "family", "a test", config))


@pytest.fixture(scope="module")
def llama() -> Report:
    return of("llama")


@pytest.fixture(scope="module")
def reports(llama: Report) -> list[Report]:
    return [llama, of("cohere"), of("gemma3"), of("mixtral"), of("gpt-neox")]


def folded(report: Report, index: int) -> Folded:
    return fold(report["slices"][index], report["slices"][index - 1]["cut"] if index else [])


def test_a_llama_layer_is_the_usual_drawing(llama: Report) -> None:
    boxes = folded(llama, 1).boxes.values()
    named = {part: [box.title for box in boxes if box.part == part] for part in ("query", "keyvalue", "rest")}
    assert named["query"] == [
        *(
            "receive output",
            "o_proj",
            "add",
            "post_attention_layernorm",
            "gate_proj",
            "silu",
            "up_proj",
            "mul",
        ),
        *("down_proj", "add", "input_layernorm", "q_proj", "rotate", "send q"),
    ]
    assert named["keyvalue"] == ["k_proj", "v_proj", "rotate", "send k, v"]
    assert named["rest"] == []


@pytest.mark.long
def test_an_mlp_that_needs_no_attention_is_drawn_during_it(reports: list[Report]) -> None:
    boxes = folded(reports[1], 1).boxes.values()
    during = [box.title for box in boxes if box.part == "rest" and box.kind == "product"]
    assert during == ["gate_proj", "up_proj", "down_proj"]


def test_saved_bytes_are_the_cut(reports: list[Report]) -> None:
    for report in reports:
        for index, piece in enumerate(report["slices"][:-1]):
            saved = [box for box in folded(report, index).boxes.values() if box.kind == "saved"]
            assert sum(sum(box.saved) for box in saved if box.part == "after") == piece["cut_bytes"]
            again = [box for box in folded(report, index + 1).boxes.values() if box.kind == "saved"]
            assert sum(sum(box.saved) for box in again if box.part == "before") == piece["cut_bytes"]


def test_edges_lead_down_and_boxes_do_not_overlap(reports: list[Report]) -> None:
    for report in reports:
        for index in range(len(report["slices"])):
            graph = folded(report, index)
            parts = [part["name"] for part in report["slices"][index]["parts"]]
            rows = rows_of(graph, parts)
            assert set(rows.of) == set(graph.boxes)
            assert all(rows.of[edge.tail] < rows.of[edge.head] for edge in graph.edges)
            wide = {name: box_width(box) for name, box in graph.boxes.items()}
            layout = lay_out([(edge.tail, edge.head) for edge in graph.edges], rows.of, wide.__getitem__)
            for row in layout.rows:
                for left, right in itertools.pairwise(row):
                    least = (wide.get(left, 0) + wide.get(right, 0)) / 2  # type: ignore[call-overload]
                    assert layout.x[right] - layout.x[left] >= least - 1e-6


def test_names_and_bytes_are_text_in_the_svg(llama: Report, tmp_path: Path) -> None:
    target = tmp_path / "slice.svg"
    draw_slice(llama, 1, target)
    drawn = target.read_text()
    for words in (
        *("q_proj", "512 x 512", "post_attention_layernorm", "1,024 B", "q 1,024 B", "k 256 B, v 256 B"),
        *("cut: 1,280 B saved", "output 1,024 B", "8 heads, 2 KV heads", "views (reshape"),
    ):
        assert words in drawn, words
    draw_slice(llama, 1, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == drawn


def test_a_failed_picture_leaves_the_old_one(
    llama: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "slice.svg"
    target.write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    with pytest.raises(UserError, match="No space left"):
        draw_slice(llama, 1, target)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("slice.svg", "old")]
