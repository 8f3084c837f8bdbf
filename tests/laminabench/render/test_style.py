"""The papers' figures follow the reader's light or dark, and the same figure is the same bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from laminabench.render import style


def picture() -> Any:
    figure, axes = style.sheet(width=style.COLUMN)
    axes.plot([1, 2], [3, 4], label="line")
    axes.axhline(3.5, color=style.PUBLISHED, ls=":", label="published: 3.5")
    style.published_band(axes, 3.2, 3.4, "published range")
    axes.legend()
    style.foot(figure, "How: " + "modelled, vllm-0.14 and vidur-2024; real traces. " * 6)
    return figure


def saved(target: Path) -> Path:
    with style.look():
        style.save(picture(), target)
    return target


def test_an_svg_has_a_dark_side(tmp_path: Path) -> None:
    svg = saved(tmp_path / "one.svg").read_text()
    # Its first element, so that it is in force for all others.
    opening, rest = re.split(r"(?<=>)(?=<style>@media)", svg, maxsplit=1)
    assert opening.count("<svg") == 1
    rules = rest[: rest.index("</style>")]
    assert rules.startswith("<style>@media (prefers-color-scheme: dark)")
    for light in (style.INK, style.PAPER, style.RULE, style.PUBLISHED):
        assert f'[style*="fill: {light}"]' in rules
        assert f'[style*="stroke: {light}"]' in rules
    # All that is drawn has a colour of the style, and text is text.
    drawn = rest[rest.index("</style>") :]
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawn))
    assert style.INK in used
    assert used <= {style.INK, style.PAPER, style.RULE, style.PUBLISHED, *style.CYCLE}
    assert "published: 3.5" in drawn


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_equal_figures_are_equal_files(suffix, tmp_path: Path) -> None:
    one, two = (saved(tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "two"))
    assert one == two
