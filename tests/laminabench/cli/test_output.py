"""Text for pipes is what rich would print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.markup import escape, render

from laminabench.cli import ending
from laminabench.cli.output import Output
from laminabench.render.terminal import literal, visible, without_markup


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


def test_no_name_reaches_the_terminal_behind_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b]52;c;aGk=\x07b\x9b2J\u202eexe.\u2066\u200f\u2028"
    shown = r"a\x1b]52;c;aGk=\x07b\x9b2J\u202eexe.\u2066\u200f\u2028"
    assert literal(name) == visible(name) == shown
    ending.print_error(f"no {name}\n")
    Output(as_json=False, quiet=False, verbose=False).note(name)
    assert capsys.readouterr().err == f"no {shown}\n\nlaminabench: {shown}\n"
