"""Our matrix products against torch's."""

from __future__ import annotations

import json
from typing import Any

import pytest

import bench
import products
from lamina.convert import packing
from laminabench.cli.main import run


@pytest.mark.skipif(not packing.packs(), reason="this CPU has no products of bfloat16")
def test_products_are_judged_by_the_median(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(products, "usual_kv_bytes", lambda: 1)
    monkeypatch.setattr(products, "WORK", 1)
    words = ["products", "--batch", "1", "--batch", "3", "--rounds", "2", "--json"]
    with pytest.raises(SystemExit) as ended:
        run(words, command=bench.bench)
    assert ended.value.code == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    rows = result["rows"]
    assert [row["batch"] for row in rows] == [1, 3] * 5
    assert {(row["outputs"], row["inputs"]) for row in rows if row["weight"] == "down"} == {(1024, 2816)}
    for row in rows:
        assert ("panels" in row["seconds"]) == bool(packing.panel_product())
        assert row["met"] == (row["ratio"]["median"] >= 1 if "ratio" in row else None)
    assert result["met"] == all(row["met"] is not False for row in rows)
