"""`laminabench replay --backend live` as a person uses it, also with faults and on a Ray cluster."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laminabench.runs.read import read_run

# Before the shell's fixture hides it.
TRACES = os.environ.get("LAMINABENCH_TRACES")
SMALL = (
    *("--trace", "azure-code", "--offline", "--num-requests", "60", "--scale-lengths", "0.1", "-q"),
    *("--model", "llama-tiny"),
)
LIVE = ("replay", *SMALL, "--backend", "live", "--max-num-seqs", "16")


def test_it_has_the_keys_of_a_modelled_replay_and_says_live(as_json: Any, pretended: dict[str, Any]) -> None:
    facts = as_json(*LIVE)
    modelled = as_json("replay", *SMALL, "--deployment", "1xcpu+1xcpu", "--costs", "roofline", "--no-out")
    assert set(modelled) - set(facts) == {"costs_set", "includes", "simulation_s"}
    assert set(facts) - set(modelled) == {"schedule", "faults", "faults_in_all", "resumed", "tokens_sha256"}
    assert (facts["backend"], facts["deployment"]) == ("live", "1xcpu+1xcpu")
    assert facts["requests"] == modelled["requests"]
    assert facts["requests"] == {"completed": 60, "rejected": 0, "unfinished": 0, "failed": 0}
    assert facts["tokens_generated"] == modelled["tokens_generated"]
    assert facts["schedule"]["violations"] == []
    assert facts["schedule"]["pieces"] > 0
    assert facts["schedule"]["bubbles"].keys() == {"model 0", "attention 0"}
    assert facts["cost"]["usd_per_hour"] is None
    assert pretended["closed"]
    saved = json.loads((Path(facts["run_dir"]) / "run.json").read_text())
    assert (saved["backend"], saved["coefficients"]) == ("live", [])
    assert saved["summary"]["schedule"] == facts["schedule"]
    # As it was in force, whatever was left out.
    assert 'network = "auto"\n' in saved["request"]
    run = read_run(Path(facts["run_dir"]))
    assert run.outcome.iterations["size"].sum() == facts["tokens_generated"]


@pytest.mark.usefixtures("pretended")
def test_work_out_of_order_fails_the_check_after_the_run_is_saved(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina.pipeline.check_schedule", lambda *_: ["model 0 did one [bold]thing"] * 3)
    code, out, err = shell(*LIVE, "--out", "kept")
    assert code == 1
    assert "left 3 times in" in out
    assert err == (
        "laminabench: check failed: the workers left the schedule 3 times, first: model 0 did one "
        "[bold]thing; "
        "this is a bug of the engine\n"
    )
    assert Path("kept", "run.json").is_file()


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("mode", [["open", "--rate-scale", "100"], ["closed", "--concurrency", "5"]])
@pytest.mark.parametrize("policy", ["fifo", "sjf", "deadline"])
def test_modes_and_policies(as_json: Any, mode: list[str], policy: str) -> None:
    facts = as_json(*LIVE, "--no-out", "--mode", *mode, "--policy", policy)
    assert facts["requests"]["completed"] == 60


@pytest.mark.usefixtures("pretended")
def test_the_timeline_is_of_the_replay_that_was(as_json: Any) -> None:
    facts = as_json(*LIVE, "--no-out", "--timeline", "t.json")
    first, last = facts["timeline"]["window_s"]
    assert 0 < first < last < facts["duration_s"]
    assert facts["timeline"]["bubbles"].keys() == {"model 0", "attention 0"}
    assert "lamina on this machine" in Path("t.json").read_text()


def test_an_interrupt_closes_the_engine_and_leaves_no_run(
    shell: Any, pretended: dict[str, Any], made_up_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(made_up_engine, "step", interrupted)
    code, out, err = shell(*LIVE, "--out", "kept", "--timeline", "t.json")
    # A file to write is named again, by its full path.
    resume = f"laminabench replay --resume kept --timeline {Path('t.json').absolute()}"
    assert (code, out, err) == (130, "", f"laminabench: interrupted; resume with: {resume}\n")
    assert pretended["closed"]
    assert sorted(Path().iterdir()) == [Path("kept.journal"), Path("kept.live")]
    # Without a Run to come there is nothing to resume.
    code, out, err = shell(*LIVE, "--no-out")
    assert (code, out, err) == (130, "", "\nlaminabench: interrupted\n")


def test_a_modelled_replay_takes_a_size_of_kv_memory_too(as_json: Any) -> None:
    few = ("replay", "--trace", "azure-code", "--offline", "--num-requests", "50", "-q", "--no-out")
    for system in ("lamina", "lamina-v1", "vllm"):
        facts = as_json(*few, "--system", system, "--kv-tokens", "16000")
        assert 16000 - 48 <= facts["kv"]["capacity_tokens"] <= 16000


@pytest.mark.outside
@pytest.mark.usefixtures("shared_machine")
@pytest.mark.parametrize(
    ("memory", "capacity"),
    [(["1500"], 1500), (["768", "--kv-overcommit", "2"], 1536)],
    ids=["plain", "overcommit"],
)
def test_real_workers_make_what_the_modelled_twin_makes(
    as_json: Any, monkeypatch: pytest.MonkeyPatch, memory: list[str], capacity: int
) -> None:
    """200 requests of azure-code, of the real trace where it is; some do not fit the memory."""
    if TRACES:
        monkeypatch.setenv("LAMINABENCH_TRACES", TRACES)
    same = (
        *("replay", "--trace", "azure-code", "--offline", "--num-requests", "200", "--scale-lengths", "0.3"),
        *("-q", "--no-out", "--model", "llama-tiny", "--deployment", "1xcpu+1xcpu"),
        *("--max-num-seqs", "32", "--kv-tokens", *memory),
    )
    twin = as_json(*same, "--costs", "roofline", "--network", "shm", "--no-overlap", "--min-batch", "8")
    # One core is enough to be right.
    facts = as_json(*same, "--backend", "live", "--oversubscribe", "--timeline", "t.json.gz")
    assert facts["requests"] == twin["requests"]
    assert facts["requests"]["rejected"] > 0
    assert facts["tokens_generated"] == twin["tokens_generated"] > 0
    assert facts["kv"]["capacity_tokens"] == twin["kv"]["capacity_tokens"] == capacity
    assert facts["facts"]["batches"] == twin["facts"]["batches"] == 2
    assert facts["facts"]["min_batch"] == twin["facts"]["min_batch"] == 8
    assert facts["schedule"]["violations"] == []
    assert Path("t.json.gz").is_file()
    run = facts["timeline"]["bubbles"]
    assert run.keys() == {"model 0", "attention 0"}
    assert all(0 <= share <= 1 for share in run.values())


def on_ray(folder: Path, model: dict[str, Any]) -> list[str]:
    config = folder / "config.json"
    config.write_text(json.dumps(model))
    return [
        *("replay", "--trace", "azure-code", "--offline", "--num-requests", "20", "--scale-lengths", "0.1"),
        *("--backend", "live", "--model", str(config), "--prefill", "model", "--no-out", "-q"),
    ]


@pytest.mark.long
@pytest.mark.usefixtures("shared_machine")
def test_the_same_tokens_as_on_one_machine(
    as_json: Any, ray_cluster: Any, tmp_path: Path, exact_model: dict[str, Any]
) -> None:
    call = on_ray(tmp_path, exact_model)
    here = as_json(*call)
    assert 0 < here["ttft_ms"]["max"] <= here["e2e_ms"]["max"]
    paged = ("--kv-tokens", "256", "--kv-overcommit", "16")
    there = as_json(*call, "--ray", ray_cluster.address, "--chaos", "attention:0@tokens=5", *paged)
    assert there["facts"]["kv_paging"]["attention 0"]["in_place"] > 0
    assert there["facts"]["ray"] == ray_cluster.address
    assert here["facts"]["ray"] is None
    assert there["tokens_sha256"] == here["tokens_sha256"]
    assert there["requests"] == here["requests"]
    assert [fault["workers"] for fault in there["faults"]] == [["attention 0"]]


@pytest.mark.usefixtures("shared_machine")
def test_an_engine_in_one_process_makes_the_tokens_of_workers(
    as_json: Any, tmp_path: Path, exact_model: dict[str, Any]
) -> None:
    call = on_ray(tmp_path, exact_model)
    call.remove("--no-out")
    workers = as_json(*call, "--oversubscribe", "--no-out")
    paged = ("--kv-tokens", "512", "--kv-overcommit", "8")
    alone = as_json(*call, "--deployment", "1xcpu", "--out", "kept", *paged)
    assert (alone["kv"]["capacity_tokens"], alone["facts"]["kv_overcommit"]) == (8 * 512, 8)
    assert alone["facts"]["kv_paging"]["attention 0"]["in_place"] > 0
    assert "kv_paging" not in workers["facts"]
    for name in ("requests", "tokens_generated", "tokens_sha256"):
        assert alone[name] == workers[name]
    assert {name: alone["facts"][name] for name in ("model_workers", "attention_workers", "network")} == {
        "model_workers": 1,
        "attention_workers": 0,
        "network": None,
    }
    assert "schedule" not in alone
    iterations = read_run(Path("kept")).outcome.iterations
    assert (iterations["model_s"] > 0).all()
    assert (iterations["attention_s"] > 0).all()
    assert (iterations["model_s"] + iterations["attention_s"] <= iterations["duration_s"]).all()


@pytest.mark.long
@pytest.mark.usefixtures("shared_machine")
def test_instances_on_a_cluster_make_the_tokens_of_one_here(
    as_json: Any, ray_cluster: Any, tmp_path: Path, exact_model: dict[str, Any]
) -> None:
    call = on_ray(tmp_path, exact_model)
    here = as_json(*call)
    there = as_json(*call, "--ray", ray_cluster.address, "--instances", "2")
    for name in ("tokens_sha256", "requests"):
        assert there[name] == here[name]
    assert there["instances"]["requests"] == [10, 10]
    assert there["facts"]["ray"] == ray_cluster.address
    assert there["schedule"]["violations"] == []


@pytest.mark.usefixtures("shared_machine")
def test_two_instances_of_which_one_is_lost_make_the_tokens_of_one(
    as_json: Any, tmp_path: Path, exact_model: dict[str, Any]
) -> None:
    """Of different layouts; the journal is there meanwhile, and the Run adds up."""
    call = [*on_ray(tmp_path, exact_model), "--oversubscribe", "--price", "cpu=0.05", "--max-num-seqs", "4"]
    alone = as_json(*call)
    both = ("--deployment", "1xcpu+1xcpu,1xcpu+2xcpu", "--router", "least-kv", "--queue", "global")
    both += ("--kv-tokens", "256", "--kv-overcommit", "16")
    call.remove("--no-out")
    facts = as_json(*call, *both, "--chaos", "instance:1@tokens=9", "--out", "kept")
    for name in ("requests", "tokens_generated", "tokens_sha256"):
        assert facts[name] == alone[name]
    assert facts["facts"]["kv_paging"].keys() == {"0/attention 0"}, "what instance 1 did is lost with it"
    assert facts["facts"]["kv_paging"]["0/attention 0"]["in_place"] > 0
    assert ["instance 1"] in [fault["workers"] for fault in facts["faults"]]
    assert {name: facts["facts"][name] for name in ("instances", "router", "queue", "attention_workers")} == {
        "instances": 2,
        "router": "least-kv",
        "queue": "global",
        "attention_workers": [1, 2],
    }
    assert facts["deployment"] == "1 of 1xcpu+1xcpu and 1 of 1xcpu+2xcpu"
    assert facts["cost"]["usd_per_hour"] == pytest.approx(5 * 0.05)
    assert facts["schedule"]["violations"] == []
    outcome = read_run(Path("kept")).outcome
    # Two batches each; those of instance 1 come after those of instance 0.
    batches = set(outcome.iterations["batch"].tolist())
    assert batches <= {0, 1, 2, 3}
    assert batches & {0, 1}
    assert batches & {2, 3}
    assert outcome.iterations["size"].sum() == facts["tokens_generated"]
    assert not outcome.requests["preemptions"].any()
    each = facts["instances"]
    # A request that moved counts where it ended.
    assert each["requests"] == np.bincount(outcome.requests["batch"] // 2, minlength=2).tolist()
    assert sum(each["mean_batch"]) == pytest.approx(facts["mean_batch"])
    assert sum(each["throughput_tokens_per_s"]) == pytest.approx(facts["throughput_tokens_per_s"])
    assert each["imbalance"] == pytest.approx(2 * max(each["mean_batch"]) / facts["mean_batch"])


def test_a_cluster_that_is_not_there(refused: Any, tmp_path: Path, exact_model: dict[str, Any]) -> None:
    refused("127.0.0.1:1", *on_ray(tmp_path, exact_model), "--ray", "127.0.0.1:1")


FAULTY = (
    *("replay", "--trace", "azure-code", "--offline", "--num-requests", "60", "--scale-lengths", "0.1", "-q"),
    *("--backend", "live", "--model", "llama-tiny", "--no-out"),
)


def test_prefill_workers_are_requested_and_have_names(as_json: Any, pretended: dict[str, Any]) -> None:
    as_json(*FAULTY, "--prefill", "2", "--oversubscribe")
    assert pretended["setup"].layout().prefill_workers == 2
    assert pretended["setup"].names() == ["model 0", "attention 0", "prefill 0", "prefill 1"]
    facts = as_json(*FAULTY)
    assert not pretended["setup"].layout().prefill_workers
    assert facts["tokens_sha256"] is None


@pytest.mark.usefixtures("pretended")
def test_the_report_shows_the_dip_the_recovery_and_what_was_lost(
    shell: Any, as_json: Any, tmp_path: Path
) -> None:
    chaos = ("--chaos", "attention:0@t=150ms", "--chaos", "model:0=stop@tokens=100", "--chaos", "random@t=9s")
    code, out, err = shell(*(word for word in FAULTY if word != "-q"), *chaos, "--plot", "dip.svg")
    assert code == 0, err
    assert re.search(r"^faults         2 recovered from \(2 of 3 blows\); at worst noticed after ", out, re.M)
    assert re.search(r"^attention 0 \(kill\) +\d\.\d\d +20\d ms +300 ms", out, re.M)
    assert re.search(r"^model 0 \(stop\) +\d\.\d\d +1,00\d ms +300 ms", out, re.M)
    assert "1 of the 3 faults of --chaos were not due before the end" in err
    assert "fault, until iterations resume" in (tmp_path / "dip.svg").read_text()
    facts = as_json(*FAULTY, *chaos)
    first = next(fault for fault in facts["faults"] if fault["workers"] == ["attention 0"])
    assert first["struck"][0]["how"] == "kill"
    assert first["detection_s"] == pytest.approx(0.2)
    assert first["recovery_s"] == pytest.approx(0.3)
    assert facts["faults_in_all"]["strikes"] == 2


@pytest.mark.usefixtures("pretended")
def test_a_run_keeps_its_faults(as_json: Any) -> None:
    saved = [word for word in FAULTY if word != "--no-out"]
    facts = as_json(*saved, "--chaos", "model:0@tokens=50", "--out", "kept")
    summary = json.loads(Path("kept", "run.json").read_text())["summary"]
    assert summary["faults"] == facts["faults"]
    assert len(facts["faults"]) == 1
