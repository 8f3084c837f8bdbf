"""The picture of a plan."""

from __future__ import annotations

from typing import Any

from laminabench.figures.planned import MARKS, picture
from laminabench.figures.style import SYSTEM_COLOURS
from laminabench.systems.registry import MODULES


def row(system: str, tbt_p99_ms: float, cost: float) -> dict[str, Any]:
    return {"system": system, "tbt_p99_ms": tbt_p99_ms, "usd_per_million_tokens": cost, "keeps_up": True}


def plan(*answers: list[dict[str, Any]]) -> dict[str, Any]:
    """A cost set each: all of its rows are on the front, and the last one wins; without any there is none."""
    return {
        "answers": [
            {"costs": f"set {i}", "replayed": rows, "front": rows, "winner": rows[-1] if rows else None}
            for i, rows in enumerate(answers)
        ],
        "slo_tbt_p99_ms": 100.0,
        "trace": {"name": "a$b"},
        "model": "m",
        "mode": "saturate",
    }


def test_the_legend_names_what_any_panel_has() -> None:
    figure = picture(plan([], [row("vllm", 20, 3), row("lamina", 50, 2)]))
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    assert names == {"lamina", "vllm", "front", "winner", "limit, 100 ms"}
    assert [axes.get_title() for axes in figure.axes] == ["set 0", "set 1"]


def test_tokens_for_nothing_have_a_place_too() -> None:
    paid, free = ([row("vllm", 20, cost)] for cost in (3.0, 0.0))
    assert {axes.get_yscale() for axes in picture(plan(paid)).axes} == {"log"}
    assert {axes.get_yscale() for axes in picture(plan(paid, free)).axes} == {"linear"}


def test_every_system_has_a_colour_and_a_mark_of_its_own() -> None:
    for looks in (SYSTEM_COLOURS, MARKS):
        assert looks.keys() == MODULES.keys()
        assert len(set(looks.values())) == len(looks)
