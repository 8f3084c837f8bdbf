"""A claim beside what came out: deviation, verdict, and the line of PAPER.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from laminabench.papers.claims import Claim, Statement, compare, fill
from laminabench.papers.page import write_page
from laminabench.papers.paper import Written


def claim(published: Any, ours: Any, **more: Any) -> Claim:
    more = {"about": "performance", "rests_on": ("data sheet", "shape"), **more}
    return Claim("what", "section 1", published, ours, "computed", **more)


@pytest.mark.parametrize(
    ("published", "ours", "deviation", "holds"),
    [
        (100.0, 90.0, -0.1, True),
        (100.0, 111.0, 0.11, False),
        ((10.0, 20.0), (10.0, 30.0), 0.5, False),
        ((10.0, 20.0), (9.5, 21.0), -0.05, True),
        # A number is compared with both ends of a range.
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
        ("at least", 70.0, 69.9, False),
        ("at least", 70.0, (69.0, 90.0), False),
        ("at most", 30.0, 20.0, True),
        ("at most", 30.0, (20.0, 41.0), False),
    ],
)
def test_a_limit_is_kept_by_all_of_a_range(relation, published, ours, holds) -> None:
    row = claim(published, ours, relation=relation).row()
    assert row[4] == ("holds" if holds else "does not hold")
    assert row[2].startswith(f"{relation} ")


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
        (1154.7, 1154.698, "", ("1,154.7", "1,154.7", "exact")),
        (33.0, None, "us", ("33 us", "-", "-")),
    ],
)
def test_a_row_is_for_reading(published, ours, unit, words) -> None:
    row = claim(published, ours, unit=unit, remark="Because of A.", experiment="without A it is 1.1.").row()
    assert row[2:5] == words
    assert row[5:7] == ("data sheet, shape", "computed")
    assert row[7] == "Because of A. Tested: without A it is 1.1."


@pytest.mark.parametrize(
    ("published", "ours", "more", "far_off"),
    [
        (100.0, 130.0, {}, True),
        (100.0, 120.0, {}, False),
        # Per cent are relative here too.
        (4.0, 2.0, {"unit": "%"}, True),
        (100.0, 130.0, {"fitted": True}, False),
        (100.0, 130.0, {"entered": True}, False),
        # Only the end that breaks the limit counts.
        (100.0, (10.0, 110.0), {"relation": "at most"}, False),
        (100.0, (70.0, 300.0), {"relation": "at least"}, True),
        (100.0, None, {}, False),
    ],
)
def test_what_is_far_off_needs_an_experiment(published, ours, more, far_off) -> None:
    assert claim(published, ours, **more).far_off is far_off


DEFAULTS = Statement("", where="section 1", how="computed", about="bookkeeping", rests_on=("shape",))


def test_a_statement_has_a_claim_for_each_row_of_words_and_fields() -> None:
    statement = Statement(
        "rate of {device}", ours="rates[{device}]", remark="up to {most[{device}]:.1f}",
        each=({"device": "h100", "published": 2.0}, {"device": "h20", "where": "table 1", "entered": True}),
    )  # fmt: skip
    values = {"rates": {"h100": pd.Series([3.0, 1.0]), "h20": 4}, "most": {"h100": [1.04, 2], "h20": 5}}
    first, second = compare(statement, values, DEFAULTS)
    assert (first.what, first.published, first.ours, first.remark) == (
        *("rate of h100", 2.0, (1.0, 3.0), "up to 1.0 to 2.0"),
    )
    assert (first.where, first.how, first.about, first.rests_on) == (
        *("section 1", "computed", "bookkeeping", ("shape",)),
    )
    assert (second.where, second.ours, second.entered) == ("table 1", 4, True)


def test_a_computed_value_chooses_a_case() -> None:
    statement = Statement("what", case="late", cases={"True": {"remark": "Late.", "rests_on": ["board"]}})
    late, early = (next(compare(statement, {"late": late}, DEFAULTS)) for late in (True, False))
    assert (late.remark, early.remark) == ("Late.", "")
    assert late.rests_on == ("paper's own numbers", "shape", "assumption", "fit")


def test_a_range_that_reads_as_one_number_is_written_as_one() -> None:
    assert fill("{a:.1f} and {a:.0f}", {"a": [1.21, 1.44]}) == "1.2 to 1.4 and 1"


@pytest.mark.parametrize("wrong", [{"relaton": "is"}, {"about": "speed"}, {"each": [{"published": []}]}])
def test_a_misspelt_field_or_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((msgspec.ValidationError, TypeError)):
        msgspec.convert({"what": "what", **wrong}, Statement)


def test_the_page_counts_bookkeeping_and_performance_apart_and_by_paper(tmp_path: Path) -> None:
    claims = (claim(1.0, 1.0), claim(1.0, 2.0, remark="a | b"), claim(1.0, None))
    saved = claim(80.0, 80.0, about="bookkeeping")
    entered = claim(80.0, 80.0, about="bookkeeping", entered=True)
    fitted = claim(1.30, 1.29, fitted=True)
    assert (entered.row()[4], fitted.row()[4]) == ("entered", "-0.8% (fitted)")
    figures = [
        Written("fig2", "How.", (*claims, saved), 1),
        Written("v1-table1", "How.", (entered,), 1),
        Written("h2m2-fig7", "How.", (fitted,), 1),
    ]
    write_page(tmp_path / "PAPER.md", figures)
    page = (tmp_path / "PAPER.md").read_text()
    for words in (
        "3 figures and tables, 6 claims. Performance: of 4 claims 2 can be compared, of which 1 hold",
        "Bookkeeping: of 2 claims 1 can be compared, of which 1 hold or come out within 10 % and 0",
        "| v2 | bookkeeping | 1 | 1 | 0 | 0 | 0 | 0 |",
        "| v2 | performance | 3 | 1 | 1 | 1 | 0 | 0 |",
        "| v1 | bookkeeping | 1 | 0 | 0 | 0 | 1 | 0 |",
        "| H2M2 | performance | 1 | 0 | 0 | 0 | 0 | 1 |",
        "| all | bookkeeping | 2 | 1 | 0 | 0 | 1 | 0 |",
        "### fig2: Time and MFU of the non-attention operators",
        "a \\| b",
    ):
        assert words in page
    assert "| v1 | performance |" not in page


def test_a_row_does_not_repeat_what_is_under_the_picture(tmp_path: Path) -> None:
    how = f"modelled: {', '.join(f'parameter_{number} 0.{number}' for number in range(10))}"
    rows = [
        msgspec.structs.replace(DEFAULTS, how=text) for text in (how, f"{how}; 3 seeds", "computed: sizes")
    ]
    claims = [next(compare(Statement("what"), {}, row)) for row in rows]
    caption = f"{how[0].upper()}{how[1:]}. Lines end somewhere."
    write_page(tmp_path / "PAPER.md", [Written("h2m2-fig7", caption, claims, 2)])
    page = (tmp_path / "PAPER.md").read_text(encoding="utf-8")
    assert page.count("parameter_9 0.9") == 1
    assert "| modelled, as under the picture |" in page
    assert "| modelled, as under the picture; 3 seeds |" in page
    assert "| computed: sizes |" in page
