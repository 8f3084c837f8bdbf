"""Every figure of every paper is written, and its page tells what it is from."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from laminabench.figures.ground import Ground
from laminabench.figures.paper import H2M2, SUFFIXES, TITLES, V1, write


@pytest.mark.long(
    but=[
        *("fig2", "table4", "v1-fig1", "v1-fig14", "v1-table1"),
        *("h2m2-fig12", "h2m2-fig16", "h2m2-table3"),
    ]
)
@pytest.mark.parametrize("name", TITLES)
def test_a_figure_is_written_whole_and_explains_what_does_not_come_out(
    name: str, ground: Ground, tmp_path: Path
) -> None:
    written = write(ground, (name, tmp_path))
    assert sorted(path.suffix for path in tmp_path.iterdir()) == sorted(SUFFIXES)
    assert all(path.stat().st_size > 100 for path in tmp_path.iterdir())
    assert len(pd.read_csv(tmp_path / f"{name}.csv")) == written.rows
    assert written.how.endswith(".")
    for each in written.claims:
        assert each.remark or each.holds is not False, each.what
        assert each.where.startswith(("section", "table")), each.what
        assert each.how, each.what
    if name in V1.figures:
        assert written.how.startswith(("Computed", "Modelled"))
    if name in H2M2.figures:
        # What the paper leaves open is said under every picture, by kind.
        assert "fitted: " in written.how
        assert "assumed" in written.how
