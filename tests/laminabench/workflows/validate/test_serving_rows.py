"""Loads of servers from a CSV, and the settings that their servers had."""

from __future__ import annotations

from pathlib import Path

import pytest

from laminabench.catalog.costs import known_devices
from laminabench.util.errors import UserError
from laminabench.workflows.validate.csv_rows import Refused
from laminabench.workflows.validate.judges import standings
from laminabench.workflows.validate.serving import grouped, predicted
from laminabench.workflows.validate.serving_rows import COLUMNS, read_rows, server_of, unpriced

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
    names = (*COLUMNS, *dict.fromkeys(name for row in rows for name in row if name not in COLUMNS))
    lines = [",".join(names), *(",".join({**GOOD, **row}.get(name, "") for name in names) for row in rows)]
    file = folder / "rows.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_row_is_the_load_that_the_table_has(tmp_path: Path) -> None:
    again = {"silicon_ttft_ms": "93.0604"}
    (load,) = read_rows(written(tmp_path, {}, again), [])
    assert (load.deployment, load.concurrency, load.server["graphs"], load.fit) == ("2xh200", 16, 2048, True)
    error = predicted(None, load).error("ttft")
    assert error is not None
    assert abs(error) < 10


def test_the_shortest_load_has_a_token_of_prompt_and_a_time_between_tokens(tmp_path: Path) -> None:
    (load,) = read_rows(written(tmp_path, {"isl": "1", "osl": "2"}), [])
    trace = load.trace()
    assert (set(trace.prompt_tokens), set(trace.output_tokens)) == ({1}, {2})


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
        ({"dp_attention": "true", "attention_dp_size": "2", "moe_ep_size": "4"}, "2:dp2ep2"),
    ],
)
def test_layouts_are_those_that_were_served(tmp_path: Path, row: dict[str, str], layout: str) -> None:
    (load,) = read_rows(written(tmp_path, row), [])
    assert load.layout == layout


def test_a_row_without_a_concurrency_has_its_groups_batches(tmp_path: Path) -> None:
    row = {"concurrency": "", "attention_dp_size": "2", "batch_size": "8"}
    (load,) = read_rows(written(tmp_path, row), [])
    assert load.concurrency == 16


def test_settings_are_of_the_day_and_of_the_nearest_version_before() -> None:
    kimi = ("kimi-k2.5", "b200", "0.17.0", "fp4")
    assert "graphs" not in server_of(*kimi, "2026-03-11")
    assert server_of(*kimi, "2026-04-20")["graphs"] == 2048
    minimax = ("minimax-m2.5", "h200", "0.16.0", "fp8")
    assert "expert_parallel" not in server_of(*minimax, "2026-03-01")
    assert server_of(*minimax, "2026-03-13")["expert_parallel"]
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
        ({"osl": "1"}, "line 2: osl is '1'"),
        ({"concurrency": "1.5"}, "concurrency is '1.5'"),
        ({"silicon_tpot_ms": "0"}, "silicon_tpot_ms is '0'"),
        ({"silicon_ttft_ms": "nan"}, "silicon_ttft_ms is 'nan'"),
    ],
)
def test_a_row_that_is_none_is_named(tmp_path: Path, row: dict[str, str], what: str) -> None:
    with pytest.raises(UserError, match=r"rows\.csv") as raised:
        read_rows(written(tmp_path, row), [])
    assert raised.value.code == "serving-rows-unreadable"
    assert what in str(raised.value)


# Made up, as all rows here.
MINIMAX = {
    "system": "b200_sxm",
    "model_path": "MiniMaxAI/MiniMax-M2.5",
    "backend_version": "0.19.0",
    "precision": "fp8",
    "tp_size": "4",
    "moe_tp_size": "4",
}
SPLIT = {
    "prefill_num_workers": "2",
    "prefill_tp": "2",
    "prefill_ep": "2",
    "decode_num_workers": "2",
    "decode_tp": "4",
    "decode_dp_attention": "True",
    "decode_ep": "4",
}


def test_rows_that_cannot_be_priced_are_named_and_leave_the_others(tmp_path: Path) -> None:
    unknown = {"model_path": "some/model"}
    too_large = {"model_path": "moonshotai/Kimi-K2.5", "precision": "int4", "tp_size": "1"}
    refused: list[Refused] = []
    loads = read_rows(written(tmp_path, unknown, {}, too_large, {"isl": "many"}), refused)
    assert [each.line for each in refused] == [2, 5]
    rows = unpriced(refused, [predicted(None, each) for each in loads])["unpriced"]
    assert [each["row"] for each in rows] == [
        *("line 2", "line 5"),
        "kimi-k2.5 on 1xh200, 1024 and 1024 tokens, 16 at once",
    ]
    assert "model_path 'some/model' is none of" in rows[0]["why"]
    assert "does not fit on 1xh200" in rows[2]["why"]
    assert unpriced([], []) == {}


def test_a_row_with_workers_for_prompts_has_a_pool(tmp_path: Path) -> None:
    (load,) = read_rows(written(tmp_path, {**MINIMAX, **SPLIT}), [])
    assert load.served_on == "2 of 4xb200:dp4ep4, prompts on 2 of 2xb200:ep2"
    devices = load.pool.devices(load.tables, known_devices([])) if load.pool else None
    assert devices is not None
    assert (devices.count, str(devices.layout)) == (4, "tp2ep2")
    result = [predicted(None, load)]
    first, together = standings(result)[0], grouped(result)
    assert (first.role, first.loads) == ("P/D", 1)
    assert [each.what for each in together] == ["minimax-m2.5, P/D", "all"]


def test_more_workers_for_prompts_shorten_waiting_and_more_that_decode_shorten_tokens(tmp_path: Path) -> None:
    def times(**workers: str) -> tuple[float, float]:
        (row,) = read_rows(written(tmp_path, {**MINIMAX, **SPLIT, **load, **workers}), [])
        result = predicted(None, row)
        assert result.ttft_ms is not None
        assert result.tpot_ms is not None
        return result.ttft_ms, result.tpot_ms

    load = {"isl": "8192", "osl": "256", "concurrency": "64"}
    ttft, tpot = times()
    more_prompts, more_decode = times(prefill_num_workers="4"), times(decode_num_workers="4")
    assert more_prompts[0] < 0.8 * ttft
    assert more_decode[1] < 0.9 * tpot
    # Half of the workers under half of the load take as long, as workers do not wait for each other's parts.
    half = times(prefill_num_workers="1", decode_num_workers="1", concurrency="32")
    assert half == (pytest.approx(ttft, rel=0.15), pytest.approx(tpot, rel=0.05))


@pytest.mark.parametrize("missing", ["prefill_num_workers", "prefill_tp", "decode_num_workers"])
def test_a_pool_with_parts_missing_is_refused(tmp_path: Path, missing: str) -> None:
    with pytest.raises(UserError, match="has prefill_num_workers, prefill_tp and decode_num_workers"):
        read_rows(written(tmp_path, {**SPLIT, missing: ""}), [])
    (none,) = read_rows(written(tmp_path, dict.fromkeys(SPLIT, "0")), [])
    assert none.pool is None


def test_files_without_rows_or_columns_are_refused(tmp_path: Path) -> None:
    for text in ("", "system,isl\n", ",".join(COLUMNS) + "\n"):
        (tmp_path / "rows.csv").write_text(text)
        with pytest.raises(UserError) as raised:
            read_rows(tmp_path / "rows.csv", [])
        assert raised.value.code == "serving-rows-unreadable"
    with pytest.raises(UserError, match="cannot read"):
        read_rows(tmp_path / "none.csv", [])
