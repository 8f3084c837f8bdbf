"""A table is built once: what each back-end makes of it."""

from __future__ import annotations

import re

import pytest

from laminabench.cli.output import Output
from laminabench.render.format import number, plain, short, with_unit
from laminabench.render.html import sheet_table
from laminabench.render.model import Cell, Sheet, listed, strong, verdict
from laminabench.render.terminal import print_sheet

HOSTILE = "</td><script>x</script> [red]no[/red] | \x1b[2J"
SHEET = Sheet(
    "a title",
    ("name", ">tokens/s"),
    [
        (HOSTILE, Cell("1.5", 1.4999, "good", "(1 to 2)")),
        strong(["long " * 60, "-"]),
        ("t", verdict(missed=True)),
    ],
    ["a note"],
)


def test_a_pipe_has_whole_cells_on_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(as_json=False, quiet=False, verbose=False)
    out.result({}, lambda console: print_sheet(console, SHEET))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "a title"
    assert lines[1].split() == ["name", "tokens/s"]
    assert lines[2].startswith(r"</td><script>x</script> [red]no[/red] | \x1b[2J")
    assert lines[2].endswith(" 1.5 (1 to 2)")
    assert lines[3].startswith("long " * 59)
    assert lines[4:] == [f"t{' ' * (len(lines[2]) - 7)}missed", "a note"]


def test_markdown_has_the_same_cells() -> None:
    lines = SHEET.to_markdown()
    assert lines[:2] == ["### a title", ""]
    assert lines[3] == "| --- | --: |"
    assert lines[4].count("|") == 4  # the one in the name is escaped
    assert lines[4].endswith("1.5 (1 to 2) |")
    assert "<script" not in "\n".join(lines)
    assert lines[-2:] == ["", "- a note"]


def test_html_has_exact_numbers_and_no_markup_of_others() -> None:
    page = sheet_table(SHEET)
    assert '<data value="1.4999">1.5</data>' in page
    assert re.search('class="ratio better".*class="interval"> \\(1 to 2\\)<', page)
    assert 'class="ratio worse">missed<' in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<li>a note</li>" in page


def test_numbers_are_written_in_one_way() -> None:
    assert [number(each) for each in (None, 1234.5, 0.01234)] == ["-", "1,234", "0.0123"]
    assert [plain(each) for each in (True, None, 1234, 0.5, [1, "a"])] == ["yes", "-", "1,234", "0.5", "1, a"]
    assert [short(each) for each in (False, 1234, 2.0, "x")] == ["no", "1234", "2", "x"]
    assert with_unit(None, "ms") == "-"
    assert listed(["a", "b", "c"]) == "a, b and c"
