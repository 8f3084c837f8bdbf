"""Text for pipes is what rich would print; progress is seen by a person at a terminal, and by nobody else."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.markup import escape, render

from laminabench.cli.output import Output
from laminabench.present.terminal import literal, without_markup


@given(st.text("ab[]/\\=# @", max_size=30))
def test_text_that_is_not_ours_is_escaped_as_rich_does(text: str) -> None:
    assert literal(text) == escape(text)
    # rich also drops a backslash before a bracket that begins no tag.
    if "\\[" not in text:
        assert without_markup(literal(text)) == render(escape(text)).plain


@pytest.mark.parametrize(
    "text", ["[bold]a[/bold] [1]", "[dim]b\\[c][/dim]", "no [bold red]tags[/] here", "[a"]
)
def test_markup_is_left_out(text: str) -> None:
    assert without_markup(text) == render(text).plain


@pytest.mark.parametrize("watched", [True, False])
def test_rates_are_drawn_where_somebody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], watched: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: watched)
    with Output(as_json=False, quiet=False, verbose=False).rates("replaying", "requests", "tokens/s") as told:
        told(3, 7, 100)
    drawn = capsys.readouterr()
    assert drawn.out == ""
    assert ("3/7" in drawn.err) == ("tokens/s" in drawn.err) == watched
    assert watched or not drawn.err


def test_quiet_means_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Output(as_json=False, quiet=True, verbose=False).rates("replaying", "requests", "tokens/s") as told:
        told(1, 2, 3)
    assert capsys.readouterr().err == ""
