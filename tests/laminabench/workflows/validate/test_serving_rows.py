"""Loads of servers from a CSV, and the settings that their servers had."""

from __future__ import annotations

from pathlib import Path

import pytest

from laminabench.util.errors import UserError
from laminabench.workflows.validate.serving import predicted
from laminabench.workflows.validate.serving_rows import COLUMNS, read_rows, server_of

GOOD = {
    "system": "h200_sxm",
    "model_path": "openai/gpt-oss-120b",
    "backend_version": "0.18.0",
    "precision": "fp4",
    "isl": "1024",
    "osl": "1024",
    "batch_size": "16.0",
    "tp_size": "2.0",
    "attention_dp_size": "1.0",
    "moe_tp_size": "2.0",
    "moe_ep_size": "1.0",
    "silicon_ttft_ms": "93.06",
    "silicon_tpot_ms": "7.884",
    "concurrency": "16",
    "measured": "2026-03-27",
}


def written(folder: Path, *rows: dict[str, str]) -> Path:
    lines = [",".join(COLUMNS), *(",".join({**GOOD, **row}[name] for name in COLUMNS) for row in rows)]
    file = folder / "rows.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_row_is_the_load_that_the_table_has(tmp_path: Path) -> None:
    again = {"silicon_ttft_ms": "93.0604"}
    (load,) = read_rows(written(tmp_path, {}, again))
    assert (load.deployment, load.concurrency, load.server["graphs"], load.fit) == ("2xh200", 16, 2048, True)
    error = predicted(None, load).error("ttft")
    assert error is not None
    assert abs(error) < 10


@pytest.mark.parametrize(
    ("row", "layout"),
    [
        ({"tp_size": "8", "moe_tp_size": "8"}, "8"),
        ({"tp_size": "4", "moe_tp_size": "1", "moe_ep_size": "4"}, "4:ep4"),
        # The sample's data parallelism is none; where it says nothing, experts have more devices.
        ({"tp_size": "2", "attention_dp_size": "2", "moe_tp_size": "1", "moe_ep_size": "4"}, "2:ep2"),
        ({"tp_size": "2", "attention_dp_size": "", "moe_tp_size": "4"}, "4:dp2"),
        ({"model_path": "MiniMaxAI/MiniMax-M2.5", "precision": "fp8", "tp_size": "8"}, "8:ep8"),
        ({"model_path": "other/MiniMax-M2.5-FP8", "precision": "fp8", "tp_size": "4"}, "4:ep4"),
    ],
)
def test_layouts_are_those_that_were_served(tmp_path: Path, row: dict[str, str], layout: str) -> None:
    (load,) = read_rows(written(tmp_path, row))
    assert load.layout == layout


def test_a_row_without_a_concurrency_has_its_groups_batches(tmp_path: Path) -> None:
    (load,) = read_rows(written(tmp_path, {"concurrency": "", "attention_dp_size": "2", "batch_size": "8"}))
    assert load.concurrency == 16


def test_settings_are_of_the_day_and_of_the_nearest_version_before() -> None:
    kimi = ("kimi-k2.5", "b200", "0.17.0", "fp4")
    assert "graphs" not in server_of(*kimi, "2026-03-11")
    assert server_of(*kimi, "2026-04-20")["graphs"] == 2048
    later = server_of("llama3-70b", "h200", "0.18.0", "fp8", "2026-05-01")
    assert (later["version"], later["kv_dtype"]) == ("0.18.0", "fp8")
    assert not {"sync", "piecewise", "fit"} & later.keys()
    elsewhere = server_of("kimi-k2.5", "h100", "0.16.0", "int4", "2026-05-01")
    assert (elsewhere["device"], elsewhere["memory_utilization"], "fit" in elsewhere) == ("h100", 0.95, False)
    other = server_of("minimax-m2.5", "b300", "0.19.0", "fp8", "2026-04-22")
    assert (other["device"], other["tables"]) == ("b300", "b200")


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"model_path": "some/model"}, "line 2: model_path 'some/model' is none of"),
        ({"system": "a100_sxm"}, "system 'a100' is none of h100, h200, b200, b300"),
        ({"precision": "fp3"}, "no settings are known of gpt-oss-120b in fp3"),
        ({"isl": "many"}, "line 2: isl is 'many'"),
        ({"concurrency": "1.5"}, "concurrency is '1.5'"),
        ({"silicon_tpot_ms": "0"}, "silicon_tpot_ms is '0'"),
        ({"silicon_ttft_ms": "nan"}, "silicon_ttft_ms is 'nan'"),
    ],
)
def test_a_row_that_is_none_is_named(tmp_path: Path, row: dict[str, str], what: str) -> None:
    with pytest.raises(UserError, match=r"rows\.csv") as raised:
        read_rows(written(tmp_path, row))
    assert raised.value.code == "serving-rows-unreadable"
    assert what in str(raised.value)


def test_files_without_rows_or_columns_are_refused(tmp_path: Path) -> None:
    for text in ("", "system,isl\n", ",".join(COLUMNS) + "\n"):
        (tmp_path / "rows.csv").write_text(text)
        with pytest.raises(UserError) as raised:
            read_rows(tmp_path / "rows.csv")
        assert raised.value.code == "serving-rows-unreadable"
    with pytest.raises(UserError, match="cannot read"):
        read_rows(tmp_path / "none.csv")
