"""The picture of a plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from laminabench.figures.planned import MARKS, picture
from laminabench.systems.registry import MODULES, colours, marker

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def point(system: str, tbt_p99_ms: float, cost: float) -> Any:
    candidate = SimpleNamespace(system=system)
    return SimpleNamespace(
        candidate=candidate, tbt_p99_ms=tbt_p99_ms, usd_per_million_tokens=cost, keeps_up=True
    )


def plan(*answers: list[Any]) -> Figure:
    """A cost set each: all of its points are on the front, the last one wins; without any there is none."""
    request: Any = SimpleNamespace(slo_tbt_p99_ms=100.0, model=SimpleNamespace(name="m"), mode="saturate")
    found: list[Any] = [
        SimpleNamespace(
            question=SimpleNamespace(costs=SimpleNamespace(name=f"set {i}")),
            found=SimpleNamespace(points=points),
            front=points,
            winner=points[-1] if points else None,
        )
        for i, points in enumerate(answers)
    ]
    return picture(request, "a$b", found)


def test_the_legend_names_what_any_panel_has() -> None:
    figure = plan([], [point("vllm", 20, 3), point("lamina", 50, 2)])
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    assert names == {"lamina", "vllm", "front", "winner", "limit, 100 ms"}
    assert [axes.get_title() for axes in figure.axes] == ["set 0", "set 1"]


def test_tokens_for_nothing_have_a_place_too() -> None:
    paid, free = ([point("vllm", 20, cost)] for cost in (3.0, 0.0))
    assert {axes.get_yscale() for axes in plan(paid).axes} == {"log"}
    assert {axes.get_yscale() for axes in plan(paid, free).axes} == {"linear"}


def test_every_system_has_a_colour_and_a_mark_of_its_own() -> None:
    assert len(set(colours().values())) == len(set(colours(page=True).values())) == len(MODULES)
    assert {marker(name) for name in MODULES} == MARKS.keys()
