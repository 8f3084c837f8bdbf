"""A Run of boards stores the contents of their memories, and readers may ignore that table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from laminabench.runs import read
from laminabench.runs.format import FIRST_VERSION
from laminabench.runs.read import read_manifest, read_run
from laminabench.runs.schema import TABLES
from laminabench.runs.write import write_run
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Spec, Timing
from laminabench.traces.table import Trace, TraceMeta

OnBoards = Callable[..., Outcome]


@pytest.fixture
def small() -> tuple[Trace, Outcome]:
    ones, flat = np.ones(30, np.int32), np.full(9, 1e-4)
    trace = Trace(np.zeros(30), ones * 5, ones * 7, TraceMeta("small"))
    spec = Spec(2, Timing(flat, flat, flat, flat, flat * 1e-3), tokens_per_pool=60, max_requests=8)
    return trace, simulate(trace, spec, Offered())


def test_the_table_comes_back_as_it_was(
    tmp_path: Path, small: tuple[Trace, Outcome], on_boards: OnBoards, manifest_of: Any, same_tables: Any
) -> None:
    trace, outcome = small
    outcome = on_boards(outcome)
    write_run(tmp_path / "run", outcome, trace, manifest_of(trace))
    result = read_run(tmp_path / "run").outcome
    assert list(result.memory or ()) == [column.name for column in TABLES["memory"]]
    same_tables(result, outcome, ["memory"])
    table = pq.read_table(tmp_path / "run" / "memory.parquet")
    assert all(field.metadata[b"doc"] for field in table.schema)


def test_a_reader_without_the_table_reads_the_others(
    tmp_path: Path,
    small: tuple[Trace, Outcome],
    on_boards: OnBoards,
    monkeypatch: pytest.MonkeyPatch,
    manifest_of: Any,
) -> None:
    trace, outcome = small
    write_run(tmp_path / "run", on_boards(outcome), trace, manifest_of(trace))
    assert read_manifest(tmp_path / "run").format_version == FIRST_VERSION
    monkeypatch.setattr(
        read, "TABLES", {name: columns for name, columns in TABLES.items() if name != "memory"}
    )
    result = read_run(tmp_path / "run").outcome
    assert result.memory is None
    np.testing.assert_array_equal(result.iterations["start_s"], outcome.iterations["start_s"])


def test_without_boards_there_is_no_table(
    tmp_path: Path, small: tuple[Trace, Outcome], manifest_of: Any
) -> None:
    trace, outcome = small
    write_run(tmp_path / "run", outcome, trace, manifest_of(trace))
    assert not (tmp_path / "run" / "memory.parquet").exists()
    assert read_run(tmp_path / "run").outcome.memory is None


def test_a_table_of_other_iterations_is_damage(
    tmp_path: Path, small: tuple[Trace, Outcome], on_boards: OnBoards, manifest_of: Any, rewritten: Any
) -> None:
    trace, outcome = small
    write_run(tmp_path / "run", on_boards(outcome), trace, manifest_of(trace))
    rewritten(tmp_path / "run", "memory", lambda table: table.slice(1))
