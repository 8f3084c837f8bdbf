"""`laminabench figures` as a person uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from laminabench.papers.entries import TITLES

DRAFT = ("--offline", "--num-requests", "50", "--jobs", "1")


def test_every_figure_is_listed_in_the_papers_order(shell: Any, as_json: Any) -> None:
    listed = as_json("figures", "--list")["figures"]
    assert listed == TITLES
    assert len(TITLES) == 46
    code, out, err = shell("figures", "--list", "v1-fig1", "table4")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["table4", "v1-fig1"]


def test_one_figure_is_written_with_its_page(printed: Any) -> None:
    out = printed("figures", "table5", "--out", "made", *DRAFT)
    assert sorted(path.name for path in Path("made").iterdir()) == [
        *("PAPER.md", "table5.csv", "table5.png", "table5.svg"),
    ]
    assert "40.64 $/h" in out
    assert "1 figures in made" in out
    page = Path("made/PAPER.md").read_text()
    assert "### table5: Equal-cost hardware configurations" in page
    assert "](table5.svg)" in page
    assert len(pd.read_csv("made/table5.csv")) == 6


def test_json_is_one_object_with_every_claim(as_json: Any) -> None:
    facts = as_json("figures", "table1", "fig3", *DRAFT)
    assert facts["folder"] == "figures"
    assert Path(facts["page"]).is_file()
    assert [each["name"] for each in facts["figures"]] == ["table1", "fig3"]
    claims = {claim["what"]: claim for claim in facts["figures"][0]["claims"]}
    price = claims["price of h20"]
    assert (price["published"], price["ours"], price["deviation"], price["holds"]) == (4.63, 4.63, 0.0, True)
    power = facts["figures"][1]["claims"][0]
    assert power["relation"] == "at least"
    assert power["ours"][0] <= power["ours"][1]


def test_an_unknown_name_is_refused_with_the_nearest(refused: Any) -> None:
    refused("no figure is called 'fig99'", "figures", "fig99", *DRAFT)
    assert not Path("figures").exists()


def test_stored_measurements_are_of_the_named_folder(as_json: Any, refused: Any) -> None:
    Path("nothing").mkdir()
    facts = as_json("figures", "fig13", "--results", "nothing", *DRAFT)
    assert "no ping-pong was measured" in facts["figures"][0]["how"]
    refused("not-there", "figures", "fig13", "--results", "not-there", *DRAFT)
