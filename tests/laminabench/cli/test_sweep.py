"""`laminabench sweep` as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from laminabench.cli import sweep_run
from laminabench.util.errors import Terminated, UserError

SMALL = ("--trace", "azure-code", "--offline", "--num-requests", "100", "-q")
GRID = ("sweep", *SMALL, "--vary", "attention-workers=2..4", "--vary", "batches=1,2", "--jobs", "1")


def interrupted_after(points: int, monkeypatch: pytest.MonkeyPatch, how: BaseException) -> None:
    """Of the processes that work, so many results come, and then this."""

    def spread(work: Any, items: Any, common: Any, **_: Any) -> Iterator[tuple[int, Any]]:
        for index in range(points):
            yield index, work(common, items[index])
        raise how

    monkeypatch.setattr(sweep_run, "spread", spread)


def test_each_point_is_a_replay(as_json: Any) -> None:
    result = as_json(*GRID)
    assert [(row["attention-workers"], row["batches"]) for row in result["rows"]] == [
        (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2),
    ]  # fmt: skip
    alone = as_json("replay", *SMALL, "--no-out", "--deployment", "2xh100+4xh20", "--batches", "1")
    row = result["rows"][4]
    assert row["deployment"] == alone["deployment"]
    assert row["throughput_tokens_per_s"] == alone["throughput_tokens_per_s"]
    assert row["tbt_ms.p99"] == alone["tbt_ms"]["p99"]
    assert row["trace.sha256"] == alone["trace"]["sha256"]
    assert (result["points"], result["kept"], result["failed"], result["plot"]) == (6, 0, 2, None)
    assert "do not split over 3" in result["rows"][2]["error"]
    assert result["rows"][2]["deployment"] == "2xh100+3xh20"
    table = pq.read_table(result["parquet"])
    assert table.column_names[:2] == ["attention-workers", "batches"]
    assert table["batches"].to_pylist() == [1, 2, 1, 2, 1, 2]
    assert table["error"].null_count == 4
    manifest = json.loads(Path(result["sweep_dir"], "sweep.json").read_text())
    assert (manifest["points"], manifest["finished"], manifest["failed"]) == (6, 6, 2)
    assert list(manifest["costs"]) == ["vllm-0.24"]
    assert manifest["traces"][0]["name"] == "azure-code"


def test_processes_give_the_same_table_as_one(as_json: Any) -> None:
    one = as_json(*GRID, "--out", "one")
    several = as_json(*GRID[:-1], "2", "--out", "several")
    assert one["rows"] == several["rows"]
    assert Path("one/sweep.parquet").read_bytes() == Path("several/sweep.parquet").read_bytes()


@pytest.mark.long
def test_on_a_ray_cluster_too(as_json: Any, ray_cluster: Any) -> None:
    several = ("--vary", "instances=1,2")
    here = as_json(*GRID, *several, "--out", "here")
    there = as_json(*GRID[:-2], *several, "--ray", ray_cluster.address, "--out", "there")
    assert there["rows"] == here["rows"]
    assert {row["deployment"] for row in here["rows"]} >= {"2xh100+4xh20", "2 of 2xh100+4xh20"}
    assert Path("here/sweep.parquet").read_bytes() == Path("there/sweep.parquet").read_bytes()


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted; "),
        (Terminated(), 143, "terminated; "),
        (UserError("worker-died", "a worker process died"), 2, "error: a worker process died; "),
    ],
)
def test_an_interrupted_sweep_resumes(
    shell: Any, as_json: Any, monkeypatch: pytest.MonkeyPatch, how: BaseException, code: int, message: str
) -> None:
    with monkeypatch.context() as patch:
        interrupted_after(3, patch, how)
        result = shell(*GRID, "--out", "kept")
    sentence = "3 of 6 points are saved in kept: the same call resumes there"
    assert result == (code, "", f"laminabench: {message}{sentence}\n")
    assert not Path("kept/sweep.parquet").exists()
    if code != 130:
        return
    with monkeypatch.context() as patch:
        interrupted_after(2, patch, how)
        assert "5 of 6 points are saved" in shell(*GRID, "--out", "kept")[2]
    resumed, whole = as_json(*GRID, "--out", "kept"), as_json(*GRID, "--out", "whole")
    assert (resumed["kept"], resumed["rows"]) == (5, whole["rows"])
    assert Path("kept/sweep.parquet").read_bytes() == Path("whole/sweep.parquet").read_bytes()


def test_finished_points_are_not_replayed_again(as_json: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = as_json(*GRID)
    interrupted_after(0, monkeypatch, AssertionError("nothing is to be replayed"))
    again = as_json(*GRID)
    assert (again["kept"], again["sweep_dir"], again["rows"]) == (6, first["sweep_dir"], first["rows"])
    message = as_json(*GRID, "--sort", "throughput")
    assert message["rows"][0]["throughput_tokens_per_s"] == message["best"]["throughput"]


def test_failed_points_are_retried_only_on_request(shell: Any) -> None:
    loud = [word for word in GRID if word != "-q"]
    assert "kept from before" not in shell(*loud)[2]
    assert "6 of 6 points stored before" in shell(*loud)[2]
    assert "4 of 6 points stored before" in shell(*loud, "--retry-failed")[2]


def test_another_sweep_in_the_same_place_is_refused(shell: Any, refused: Any) -> None:
    assert shell(*GRID, "--out", "here")[0] == 0
    message = "error: here has another sweep, with the flags --trace azure-code"
    refused(message, *GRID, "--price", "h20=1", "--out", "here")
    Path("mine").mkdir()
    Path("mine/precious").touch()
    refused("is not a sweep", *GRID, "--out", "mine")


def test_other_content_of_a_file_is_another_sweep(shell: Any, refused: Any, core_costs: str) -> None:
    call = ("sweep", "--trace", "t.csv", "--vary", "batches=1,2", "--jobs", "1", "--out", "here", "-q")
    call += ("--costs", core_costs)
    Path("t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,9\n1,5,9\n")
    costs = Path(core_costs).read_text()
    assert shell(*call)[0] == 0
    message = "here has another sweep, of a trace, a model or prices that have changed since"
    Path(core_costs).write_text(costs.replace("bf16 = 0.3", "bf16 = 0.4"))
    refused(message, *call)
    Path(core_costs).write_text(costs)
    assert shell(*call)[0] == 0
    Path("t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,9\n1,5,8\n")
    refused(message, *call)


def test_counts_are_of_every_instance_and_prompts_keep_their_devices(as_json: Any) -> None:
    more = ("--vary", "attention-workers=2,4", "--prefill", "pool:4xh100", "--jobs", "1")
    equal = as_json("sweep", *SMALL, *more, "--instances", "2")
    assert [row["deployment"] for row in equal["rows"]] == [
        f"2 of 2xh100+{count}xh20, prompts on 4xh100" for count in (2, 4)
    ]
    others = as_json("sweep", *SMALL, *more, "--deployment", "2xh100+8xh20,4xh100+8xh20")
    assert others["rows"][1]["deployment"] == (
        "1 of 2xh100+4xh20, prompts on 4xh100 and 1 of 4xh100+4xh20, prompts on 4xh100"
    )


def test_several_traces_rates_and_switches(as_json: Any) -> None:
    result = as_json(
        *("sweep", *SMALL[2:], "--mode", "open", "--jobs", "1", "--vary", "trace=azure-code,azure-conv"),
        *("--vary", "rate-scale=1,2.5", "--vary", "host-async=no,yes", "--vary", "overlap=yes,no"),
        *("--costs", "vllm-0.14"),
    )
    assert result["failed"] == 0
    assert len({row["tbt_ms.mean"] for row in result["rows"]}) > 8
    assert {row["trace.name"] for row in result["rows"]} == {"azure-code", "azure-conv"}
    assert [row["rate-scale"] for row in result["rows"][:8]] == [1.0] * 4 + [2.5] * 4
    last = result["rows"][-1]
    assert (last["host-async"], last["overlap"]) == (True, False)
    table = pq.read_table(result["parquet"])
    assert str(table.schema.field("host-async").type) == "bool"
    alone = as_json(
        *("replay", *SMALL[2:], "--trace", "azure-conv", "--mode", "open", "--rate-scale", "2.5", "--no-out"),
        *("--host-async", "--no-overlap", "--costs", "vllm-0.14"),
    )
    assert last["throughput_tokens_per_s"] == alone["throughput_tokens_per_s"]


def test_no_point_at_all(shell: Any) -> None:
    code, out, err = shell("sweep", *SMALL, "--vary", "attention-workers=3,5", "--jobs", "1")
    assert code == 2
    assert out.startswith("2 points, modelled, 2 failed")
    assert "no point could be replayed; the first: the 8 KV heads" in err


def test_live_points_one_after_another(as_json: Any, pretended: dict[str, Any]) -> None:
    result = as_json(
        *("sweep", *SMALL, "--scale-lengths", "0.1", "--kv-tokens", "9000", "--model", "llama-tiny"),
        *("--backend", "live", "--vary", "max-num-seqs=2,4", "--vary", "admission=reserve,grow"),
        *("--jobs", "2"),
    )
    # One that worked in another process would not have been seen here.
    assert pretended["setup"].max_num_seqs == 4
    assert {row["backend"] for row in result["rows"]} == {"live"}
    assert [row["requests.completed"] for row in result["rows"]] == [100] * 4
    assert result["rows"][0]["mean_batch"] < result["rows"][2]["mean_batch"]
