"""Arrays of a packaged cost set have the values of the set that they were written from."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace

from laminabench.catalog.cost_file import digest, from_table, load_costs
from laminabench.catalog.costs import CostSet
from laminabench.catalog.measured_tables import read_arrays
from pack_costs import write_packaged


def _read(folder: Path, name: str) -> CostSet:
    table = tomllib.loads((folder / f"{name}.toml").read_text())
    with (folder / f"{name}.npz").open("rb") as file:
        return from_table(table, name, read_arrays(file, table["measured"]["index"]))


@pytest.mark.parametrize("name", ["vllm-0.19", "vllm-0.24"])
def test_a_set_is_written_and_read_back(tmp_path: Path, name: str) -> None:
    costs = load_costs(name)
    write_packaged(costs, tmp_path, "made by a test")
    again = _read(tmp_path, name)
    assert digest(again) == digest(costs)
    assert digest(again) != digest(replace(costs, measured=replace(costs.measured, graph_rows=1)))
    index = tomllib.loads((tmp_path / f"{name}.toml").read_text())["measured"]["index"]
    measured = costs.measured
    for kind in ("gemm", "operators", "lines", "latent", "experts", "attention"):
        assert sum(row["curves"] for row in index if row["of"] == kind) == len(getattr(measured, kind))
    assert all("(Apache-2.0)" in row["source"] or "(MIT)" in row["source"] for row in index)


def test_the_digest_is_of_values_whatever_the_file_is(tmp_path: Path) -> None:
    path = tmp_path / "vllm-0.14.toml"
    text = Path("laminabench/catalog/data/costs/vllm-0.14.toml").read_text()
    path.write_text("# another comment\n" + text.replace("overhead_us = 5.349", "overhead_us = 0.5349e1"))
    assert digest(load_costs(str(path))) == digest(load_costs("vllm-0.14"))
    path.write_text(text.replace("sharpness = 1.", "sharpness = 1.1", 1))
    assert digest(load_costs(str(path))) != digest(load_costs("vllm-0.14"))
