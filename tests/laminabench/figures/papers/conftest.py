"""What holds for every figure of every paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from laminabench.figures.ground import Ground
from laminabench.figures.paper import SUFFIXES, Written, write


@pytest.fixture
def written_whole(tmp_path: Path) -> Callable[[Ground, str], Written]:
    """Writes a figure; holds that all of it is there, and that what does not come out is explained."""

    def check(ground: Ground, name: str) -> Written:
        written = write(ground, (name, tmp_path))
        assert sorted(path.suffix for path in tmp_path.iterdir()) == sorted(SUFFIXES)
        assert all(path.stat().st_size > 100 for path in tmp_path.iterdir())
        assert len(pd.read_csv(tmp_path / f"{name}.csv")) == written.rows
        assert written.how.endswith(".")
        for each in written.claims:
            assert each.remark or each.holds is not False, each.what
            assert each.where.startswith(("section", "table")), each.what
            assert each.how, each.what
        return written

    return check
