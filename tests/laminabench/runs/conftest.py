"""What is done to Runs in a directory, and what readers then say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laminabench.runs.format import sha256_of
from laminabench.runs.read import read_run
from laminabench.sim.outcome import Outcome
from laminabench.util.errors import UserError


@pytest.fixture(scope="session")
def damaged() -> Callable[[Path, str], None]:
    """A table with flipped bits, or cut off, is damage; one that is gone makes a Run incomplete."""

    def check(directory: Path, name: str) -> None:
        path = directory / f"{name}.parquet"
        content = path.read_bytes()
        flipped = [bytearray(content) for _ in range(8)]
        for place, bits in enumerate(flipped):
            bits[len(content) * place // 8] ^= 1
        for damage in (*flipped, content[: len(content) // 2], b"", b"PAR1"):
            path.write_bytes(damage)
            with pytest.raises(UserError, match="run-damaged"):
                read_run(directory)
        path.unlink()
        with pytest.raises(UserError, match="run-incomplete"):
            read_run(directory)

    return check


@pytest.fixture(scope="session")
def rewritten() -> Callable[..., None]:
    """A table as another program would write it that takes care of the checksum."""

    def check(directory: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
        path = directory / f"{name}.parquet"
        pq.write_table(change(pq.read_table(path)), path)
        with pytest.raises(UserError, match="run-damaged"):
            read_run(directory)
        facts = json.loads((directory / "run.json").read_text())
        del facts["crc32"]
        facts["tables"][name]["sha256"] = sha256_of(path)
        (directory / "run.json").write_text(json.dumps(facts))
        with pytest.raises(UserError, match="run-damaged"):
            read_run(directory)

    return check


@pytest.fixture(scope="session")
def same_tables() -> Callable[..., None]:
    """Bit by bit, whatever else is in what was read back."""

    def same(result: Outcome, outcome: Outcome, tables: Iterable[str]) -> None:
        for table in tables:
            for name, column in getattr(outcome, table).items():
                back = getattr(result, table)[name]
                assert back.dtype == column.dtype, name
                np.testing.assert_array_equal(back, column, err_msg=f"{table}.{name}")

    return same
