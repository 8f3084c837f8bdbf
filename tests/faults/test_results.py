"""Results in the repository are read by what writes them."""

from __future__ import annotations

from pathlib import Path

from experiments import results

FOLDER = Path(__file__).parents[2] / "results" / "torture"


def test_the_table_is_that_of_the_files() -> None:
    assert (FOLDER / "summary.md").read_text().splitlines() == list(results._page(FOLDER))
