"""A claim beside what came out: deviation, verdict, and the line of PAPER.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laminabench.papers.claims import Claim, Section
from laminabench.papers.page import write_page
from laminabench.papers.paper import Written


def claim(published: Any, ours: Any, **more: Any) -> Claim:
    more = {"about": "performance", "rests_on": ("data sheet", "shape"), **more}
    return Claim("what", "section 1", published, ours, "computed", **more)


@pytest.mark.parametrize(
    ("published", "ours", "deviation", "holds"),
    [
        (100.0, 100.0, 0.0, True),
        (100.0, 90.0, -0.1, True),
        (100.0, 111.0, 0.11, False),
        ((10.0, 20.0), (10.0, 30.0), 0.5, False),
        ((10.0, 20.0), (9.5, 21.0), -0.05, True),
        # A number beside a range is beside both its ends.
        (100.0, (95.0, 120.0), 0.2, False),
        ((100.0, 200.0), 110.0, -0.45, False),
        (-10.0, -12.0, 0.2, False),
    ],
)
def test_a_number_holds_within_ten_per_cent(published, ours, deviation, holds) -> None:
    made = claim(published, ours)
    assert made.deviation == pytest.approx(deviation)
    assert made.holds is holds


@pytest.mark.parametrize(
    ("relation", "published", "ours", "holds"),
    [
        ("at least", 70.0, 82.0, True),
        ("at least", 70.0, 69.9, False),
        ("at least", 70.0, (69.0, 90.0), False),
        ("at most", 30.0, 20.0, True),
        ("at most", 30.0, (20.0, 41.0), False),
    ],
)
def test_a_limit_is_kept_by_all_of_a_range(relation, published, ours, holds) -> None:
    made = claim(published, ours, relation=relation)
    assert made.holds is holds
    assert made.row()[4] == ("holds" if holds else "does not hold")
    assert made.row()[2].startswith(f"{relation} ")


@pytest.mark.parametrize(("published", "ours"), [("rapidly", "+83 %"), (33.0, None), (None, 1.0), (0.0, 1.0)])
def test_what_cannot_be_compared_has_no_verdict(published, ours) -> None:
    made = claim(published, ours)
    assert (made.deviation, made.holds, made.row()[4]) == (None, None, "-")


@pytest.mark.parametrize(
    ("published", "ours", "unit", "words"),
    [
        (20.32, 20.32, "$/h", ("20.32 $/h", "20.32 $/h", "exact")),
        (2.39, 2.474, "", ("2.39", "2.474", "+3.5%")),
        ((16.1, 90.1), (2.3, 53.8), "%", ("16.1 to 90.1 %", "2.3 to 53.8 %", "-13.8, -36.3 points")),
        (19366.0, 19000.0, "", ("19,366", "19,000", "-1.9%")),
        (1154.7, 1154.698, "", ("1,154.7", "1,154.7", "exact")),
        (33.0, None, "us", ("33 us", "-", "-")),
    ],
)
def test_a_row_is_for_reading(published, ours, unit, words) -> None:
    row = claim(published, ours, unit=unit, remark="why").row()
    assert row[2:5] == words
    assert (*row[:2], *row[5:]) == ("what", "section 1", "data sheet, shape", "computed", "why")


@pytest.mark.parametrize(
    ("published", "ours", "more", "far_off"),
    [
        (100.0, 130.0, {}, True),
        (100.0, 120.0, {}, False),
        # Per cent are relative here too.
        (4.0, 2.0, {"unit": "%"}, True),
        (100.0, 130.0, {"fitted": True}, False),
        (100.0, 130.0, {"entered": True}, False),
        (100.0, 10.0, {"relation": "at most"}, False),
        # Only the end that breaks the limit counts.
        (100.0, (10.0, 110.0), {"relation": "at most"}, False),
        (100.0, (10.0, 130.0), {"relation": "at most"}, True),
        (100.0, (70.0, 300.0), {"relation": "at least"}, True),
        (100.0, None, {}, False),
    ],
)
def test_what_is_far_off_needs_an_experiment(published, ours, more, far_off) -> None:
    assert claim(published, ours, **more).far_off is far_off


def test_an_experiment_stands_after_the_remark() -> None:
    row = claim(1.0, 2.0, remark="Because of A.", experiment="without A it is 1.1.").row()
    assert row[-1] == "Because of A. Tested: without A it is 1.1."


def test_a_section_s_defaults_may_be_overridden() -> None:
    says = Section("section 1", "computed", "bookkeeping", ("shape",))
    assert (says("what", 1.0, 1.0).about, says("what", 1.0, 1.0).rests_on) == ("bookkeeping", ("shape",))
    other = says("what", 1.0, [3.0, 2.0], about="performance", rests_on=("trace",), experiment="tried")
    assert (other.about, other.rests_on, other.experiment) == ("performance", ("trace",), "tried")
    assert other.ours == (2.0, 3.0)


def test_the_page_counts_bookkeeping_and_performance_apart_and_by_paper(tmp_path: Path) -> None:
    claims = (claim(1.0, 1.0), claim(1.0, 2.0, remark="a | b"), claim(1.0, None))
    kept = claim(80.0, 80.0, about="bookkeeping")
    entered = claim(80.0, 80.0, about="bookkeeping", entered=True)
    figures = [Written("fig2", "How.", (*claims, kept), 1), Written("v1-table1", "How.", (entered,), 1)]
    write_page(tmp_path / "PAPER.md", figures)
    page = (tmp_path / "PAPER.md").read_text()
    assert (
        "2 figures and tables, 5 claims. Performance: of 3 claims 2 can be compared, of which 1 hold" in page
    )
    assert "Bookkeeping: of 2 claims 1 can be compared, of which 1 hold or come out within 10 % and 0" in page
    assert "| v2 | bookkeeping | 1 | 1 | 0 | 0 | 0 | 0 |" in page
    assert "| v2 | performance | 3 | 1 | 1 | 1 | 0 | 0 |" in page
    assert "| v1 | bookkeeping | 1 | 0 | 0 | 0 | 1 | 0 |" in page
    assert "| v1 | performance |" not in page
    assert "| all | bookkeeping | 2 | 1 | 0 | 0 | 1 | 0 |" in page
    assert "### fig2: Time and MFU of the non-attention operators" in page
    assert "a \\| b" in page
    assert "## H2M2" not in page


@pytest.mark.parametrize(
    ("how", "told", "name", "ours", "counted"),
    [
        ("entered", "entered", "table1", 1.0, "| 2 | 1 | 0 | 0 | 1 | 0 |"),
        ("fitted", "-0.8% (fitted)", "h2m2-fig7", 2.0, "| 2 | 0 | 1 | 0 | 0 | 1 |"),
    ],
)
def test_what_says_nothing_of_us_is_called_so_and_counts_as_nothing(
    tmp_path: Path, how: str, told: str, name: str, ours: float, counted: str
) -> None:
    nothing = claim(1.30, 1.30 if how == "entered" else 1.29, **{how: True})
    assert nothing.row()[4] == told
    write_page(tmp_path / "PAPER.md", [Written(name, "how", (nothing, claim(1.0, ours)), 2)])
    page = (tmp_path / "PAPER.md").read_text(encoding="utf-8")
    assert f"| all | performance {counted}" in page
    assert ("## H2M2" in page) == (how == "fitted")


def test_a_row_does_not_repeat_what_is_under_the_picture(tmp_path: Path) -> None:
    how = f"modelled: {', '.join(f'parameter_{number} 0.{number}' for number in range(10))}"
    says = Section("section 1", how, "performance", ("fit",))
    rows = (
        says("one", 1.0, 1.0),
        says("two", 1.0, 1.0, how=f"{how}; 3 seeds"),
        says("three", 1.0, 1.0, how="computed: sizes of tensors"),
    )
    caption = f"{how[0].upper()}{how[1:]}. Lines end somewhere."
    write_page(tmp_path / "PAPER.md", [Written("h2m2-fig7", caption, rows, 2)])
    page = (tmp_path / "PAPER.md").read_text(encoding="utf-8")
    assert page.count("parameter_9 0.9") == 1
    assert "| modelled, as under the picture |" in page
    assert "| modelled, as under the picture; 3 seeds |" in page
    assert "| computed: sizes of tensors |" in page
