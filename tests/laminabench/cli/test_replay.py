"""`laminabench replay` and what belongs to it, as a person uses them; test_main has the shell's view."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from laminabench.requests.replay import FIELDS
from laminabench.systems.registry import LIVE, MODULES, find_system, takes

SMALL = ("--trace", "azure-code", "--offline", "--num-requests", "200", "-q")
# DESIGN.md's documented keys of a replay.
KEYS = {
    *("throughput_tokens_per_s", "mean_batch", "tbt_ms", "slo", "cost", "requests", "tokens_generated"),
    *("duration_s", "wall_s", "trace", "deployment", "backend", "run_dir"),
}


def test_replay_has_the_documented_keys_and_keeps_a_run(as_json: Any) -> None:
    facts = as_json("replay", *SMALL)
    assert set(facts) >= KEYS
    assert facts["backend"] == "modelled"
    assert facts["deployment"] == "2xh100+4xh20"
    assert facts["trace"]["source"] == "profile"
    assert facts["requests"]["completed"] == 200
    saved = json.loads((Path(facts["run_dir"]) / "run.json").read_text())
    assert saved["summary"]["throughput_tokens_per_s"] == facts["throughput_tokens_per_s"]
    assert all(row["source"] for row in saved["coefficients"])
    parts = {path.name for path in Path(facts["run_dir"]).iterdir()}
    assert parts == {"run.json", "requests.parquet", "iterations.parquet"}


def test_the_same_replay_gives_the_same_bytes(as_json: Any) -> None:
    for name in ("one", "two"):
        as_json("replay", *SMALL, "--out", name)
    for table in ("requests.parquet", "iterations.parquet"):
        assert Path("one", table).read_bytes() == Path("two", table).read_bytes()


def test_prices_change_the_cost_and_nothing_else(as_json: Any) -> None:
    usual = as_json("replay", *SMALL, "--no-out")
    cheap = as_json("replay", *SMALL, "--no-out", "--price", "h100=2.5", "--price", "h20=1")
    assert cheap["cost"]["usd_per_hour"] == pytest.approx(9.0)
    assert usual["cost"]["usd_per_hour"] == pytest.approx(40.64)
    assert cheap["throughput_tokens_per_s"] == usual["throughput_tokens_per_s"]


def test_runs_within_a_second_do_not_replace_each_other(as_json: Any) -> None:
    directories = {as_json("replay", *SMALL)["run_dir"] for _ in range(3)}
    assert len(directories) == 3
    assert all(Path(directory, "run.json").is_file() for directory in directories)


def test_a_models_name_is_no_path(as_json: Any, tmp_path: Path) -> None:
    config = {
        "_name_or_path": "meta/../[red]x", "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
        "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100,
    }  # fmt: skip
    Path("config.json").write_text(json.dumps(config))
    # A folder called like a model of the catalogue is not in the way.
    Path("llama3-70b").mkdir()
    facts = as_json("replay", *SMALL, "--model", "config.json", "--deployment", "1xh100+1xh20")
    assert (tmp_path / facts["run_dir"]).parent == tmp_path / "runs"
    assert as_json("replay", *SMALL, "--no-out")["model"] == "llama3-70b"


def test_asynchronous_host_work_is_hidden(as_json: Any) -> None:
    for system in ("lamina", "vllm"):
        slow = ("replay", *SMALL, "--no-out", "--system", system, "--costs", "vllm-0.14")
        exposed, hidden = as_json(*slow), as_json(*slow, "--host-async")
        assert hidden["time_shares"]["host"] < 0.01 < exposed["time_shares"]["host"]
        assert hidden["throughput_tokens_per_s"] > exposed["throughput_tokens_per_s"]


def test_an_empty_timeline_window_is_refused(shell: Any) -> None:
    for window in ("1000000:1000001", "1e10:2e10"):
        code, out, err = shell(
            "replay", *SMALL, "--no-out", "--timeline", "t.json", "--timeline-window", window
        )
        assert code == 2
        assert "throughput" in out, "what the replay has come to is told all the same"
        assert "no work begins in the window" in err
    assert not Path("t.json").exists()


def test_growing_requests_are_preempted_when_memory_is_tight(as_json: Any) -> None:
    tight = "replay --trace azure-conv --offline --num-requests 1500 -q --no-out --admission grow"
    for system in ("lamina", "vllm"):
        facts = as_json(tight, "--system", system, "--model", "llama-65b")
        assert facts["preemptions"] > 0
        assert facts["requests"]["completed"] == 1500


def test_the_manifest_repeats_the_choices(as_json: Any) -> None:
    facts = as_json("replay", *SMALL, "--system", "lamina-v1", "--kv-overcommit", "1.5")
    saved = json.loads((Path(facts["run_dir"]) / "run.json").read_text())
    assert "kv-overcommit = 1.5\n" in saved["request"]
    assert {"paging", "memory", "recompute", "network"} <= {row["term"] for row in saved["coefficients"]}
    # v1's devices are compared by what they cost to buy.
    assert {device["price"]["basis"] for device in saved["deployment"]["devices"]} == {"purchase"}


def test_prefix_sharing_makes_room(as_json: Any) -> None:
    kimi = ("--trace", "kimi-conv", "--offline", "--num-requests", "400", "-q", "--no-out")
    alone = as_json("replay", *kimi)
    shared = as_json("replay", *kimi, "--prefix-sharing")
    assert shared["mean_batch"] > alone["mean_batch"]


def test_what_can_never_fit_is_rejected_and_counted(as_json: Any) -> None:
    facts = as_json("replay", "--trace", "kimi-conv", "--offline", "-q", "--no-out", "--model", "llama-33b",
        "--system", "vllm", "--num-requests", "2000",
    )  # fmt: skip
    assert facts["requests"]["rejected"] > 0
    assert sum(facts["requests"].values()) == 2000


def test_shortest_job_first_lowers_the_typical_wait(as_json: Any) -> None:
    # A hundred at a time, so that there is a queue to reorder.
    common = ("replay", *SMALL, "--no-out", "--max-num-seqs", "10")
    fifo = as_json(*common)
    shortest = as_json(*common, "--policy", "sjf")
    assert shortest["queueing_s"]["p50"] < fifo["queueing_s"]["p50"]
    assert as_json(*common, "--policy", "deadline")["requests"]["completed"] == 200


def test_a_host_of_one_s_own_is_in_every_iteration_and_in_the_run(as_json: Any, refused: Any) -> None:
    common = ("replay", *SMALL, "--system", "vllm", "--max-num-seqs", "1", "--costs", "vllm-0.14")
    usual, slow = as_json(*common, "--no-out"), as_json(*common, "--host", "5ms,40us")
    # One request at a time: 2 ms and 20 us have become 5 ms and 40 us, and nothing else changed.
    assert slow["tbt_ms"]["p50"] - usual["tbt_ms"]["p50"] == pytest.approx(3.02, abs=0.001)
    saved = json.loads((Path(slow["run_dir"]) / "run.json").read_text())
    (host,) = (row for row in saved["coefficients"] if row["term"] == "host")
    assert host["kind"] == "given"
    assert host["coefficients"] == {"per_step_s": 0.005, "per_request_s": pytest.approx(40e-6), "gap_s": 0}
    assert 'host = "5ms,40us"' in saved["request"]
    refused("[host-unreadable]", *common, "--host", "fast", "-v")
    refused("[replay-flag-unused]", *common[:4], "--backend", "live", "--host", "5ms", "-v")


def test_a_policy_of_ones_own(refused: Any, as_json: Any) -> None:
    Path("mine.py").write_text(
        "class Longest:\n"
        "    def __init__(self, trace, slo_tbt_s):\n        self.trace = trace\n"
        "    def priority(self, request):\n        return -int(self.trace.output_tokens[request])\n"
        "class Broken:\n"
        "    def __init__(self, trace, slo_tbt_s):\n        pass\n"
        "    def priority(self, request):\n        raise KeyError(request)\n"
    )
    common = ("replay", *SMALL, "--no-out", "--max-num-seqs", "10", "--policy")
    longest, shortest = as_json(*common, "mine:Longest"), as_json(*common, "sjf")
    assert longest["queueing_s"]["p50"] > shortest["queueing_s"]["p50"]
    refused("--policy mine:Broken, request 0: KeyError: 0", *common, "mine:Broken")


def test_the_timeline_can_be_opened(shell: Any) -> None:
    code, _, err = shell("replay", "--trace", "azure-conv", "--offline", "--num-requests", "2000", "--no-out",
                         "--timeline", "t.json")  # fmt: skip
    assert code == 0
    assert "ui.perfetto.dev" in err
    events = json.loads(Path("t.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    assert sum(event["ph"] == "X" for event in events) > 50


def test_sharegpt_in_open_mode_says_what_it_needs(refused: Any, as_json: Any) -> None:
    few = ("--trace", "sharegpt", "--offline", "--num-requests", "100", "-q", "--no-out", "--mode", "open")
    refused("--request-rate", "replay", *few)
    assert as_json("replay", *few, "--request-rate", "3")["requests"]["completed"] == 100


@pytest.mark.parametrize(
    ("trace", "flags"),
    [
        ("azure-2024-conv", ["--num-requests", "3000000", "--mode", "open"]),
        ("azure-code", ["--backend", "live", "--oversubscribe", "--model", "llama-tiny"]),
    ],
)
def test_an_interrupt_leaves_no_run(started: Any, tmp_path: Path, trace: str, flags: list[str]) -> None:
    child = started(tmp_path, "replay", "--trace", trace, "--offline", "--out", "run", *flags)
    # The notice comes once the trace is there and the simulation begins, or the engine is about to start.
    assert any(f"{trace} is not here" in line for line in iter(child.stderr.readline, ""))
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "interrupted" in err
    assert list(tmp_path.iterdir()) == []


def test_a_config_file_is_the_flags_and_flags_win(as_json: Any, refused: Any, printed: Any) -> None:
    four = ("--deployment", "4xh100+4xh20")
    out = printed("replay", *SMALL[:-1], "--batches", "3", *four, "--no-overlap", "--print-config")
    assert out == (
        'trace = "azure-code"\ndeployment = "4xh100+4xh20"\nbatches = 3\noverlap = false\n'
        "offline = true\nnum-requests = 200\n"
    )
    Path("mine.toml").write_text(f"{out}no-out = true\n")
    three = as_json("replay", "--config", "mine.toml", "-q")
    assert (three["facts"]["batches"], three["facts"]["overlap"], three["run_dir"]) == (3, False, None)
    assert as_json("replay", "--config", "mine.toml", "-q", "--batches", "2")["facts"]["batches"] == 2
    again = printed("replay", "--config", "mine.toml", "--print-config", "--batches", "2")
    assert again == Path("mine.toml").read_text().replace("batches = 3", "batches = 2")
    Path("mine.toml").write_text('trace = "azure-code"\nbatchs = 3\n')
    refused("mine.toml has 'batchs', which is not known; did you mean batches", "replay --config mine.toml")


def test_a_run_is_repeated_from_its_manifest(as_json: Any, shell: Any) -> None:
    first = as_json("replay", *SMALL, "--system", "lamina-v1", "--seed", "4", "--price", "a100-80g=2")
    again = as_json("replay", "--again", first["run_dir"], "-q")
    assert again["run_dir"] != first["run_dir"]
    for name in set(first) - {"run_dir", "wall_s", "simulation_s"}:
        assert again[name] == first[name], name
    changed = as_json("replay", "--again", first["run_dir"], "-q", "--no-out", "--slo-tbt-ms", "1")
    assert changed["slo"]["tbt_ms"] == 1.0
    assert changed["throughput_tokens_per_s"] == first["throughput_tokens_per_s"]
    manifest = Path(first["run_dir"], "run.json")
    facts = json.loads(manifest.read_text())
    del facts["request"], facts["crc32"]
    manifest.write_text(json.dumps(facts))
    code, _, err = shell("replay", "--again", first["run_dir"], "-v")
    assert (code, err.rstrip().endswith("[run-too-old]")) == (2, True)
    assert shell("replay", "--again", "here", "--config", "there")[0] == 2


def changed_request(run: str, text: str) -> None:
    """Put choices into a Run's request, as the author of the Run could."""
    manifest = Path(run, "run.json")
    facts = json.loads(manifest.read_text())
    facts["request"] += text
    del facts["crc32"]
    manifest.write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ('policy = "evil:Policy"\n', "--policy evil:Policy"),
        ('url = "http://127.0.0.1:9"\napi-key-file = "run/run.json"\n', "--url http://127.0.0.1:9"),
        ('plot = "mine.svg"\n', "--plot mine.svg"),
        ('timeline = "mine.json"\n', "--timeline mine.json"),
        ('out = "elsewhere"\n', "--out elsewhere"),
        ("metrics-port = 0\n", "--metrics-port 0"),
    ],
)
def test_a_run_of_others_runs_no_code_and_writes_nowhere_else(
    as_json: Any, refused: Any, text: str, flag: str
) -> None:
    as_json("replay", *SMALL[:-1], "--out", "run")
    Path("evil.py").write_text("open('ran', 'w')\nclass Policy: ...\n")
    before = sorted(Path().iterdir())
    changed_request("run", text)
    refused(flag, "replay", "--again", "run", "-q")
    request = json.loads(Path("run", "run.json").read_text())["request"]
    Path("kept.toml").write_text(request)
    refused(flag, "replay", "--config", "kept.toml", "-q")
    assert sorted(Path().iterdir()) == sorted([*before, Path("kept.toml")])


def test_the_first_screen_of_help_is_what_a_newcomer_needs(printed: Any) -> None:
    out = printed("replay", "--help")
    screen = "\n".join(out.splitlines()[:24])
    for needed in ("laminabench replay --trace azure-conv", "Workload:", "--trace", "--mode", "--system"):
        assert needed in screen
    assert len(out.splitlines()) <= 50
    assert "--kv-overcommit" not in out
    all_ = printed("replay", "--help-all")
    headings = ["Workload:", "System and hardware:", "Live replays:", "A server", "Cuts of", "Output:"]
    places = [all_.index(f"\n{heading}") for heading in headings]
    assert places == sorted(places)
    assert all(field.flag in all_ for field in FIELDS.values())


@pytest.mark.parametrize("system", [*MODULES, *LIVE])
@pytest.mark.parametrize("backend", ["modelled", "live"])
def test_the_help_of_a_system_has_what_it_takes_with_its_defaults(
    printed: Any, system: str, backend: str
) -> None:
    result = find_system(system, backend)
    out = printed("replay", "--system", system, "--backend", backend, "--help")
    if result is not None:
        taken = {field.flag for name, field in FIELDS.items() if takes(result, name)}
        assert taken == {field.flag for field in FIELDS.values() if f"{field.flag} " in f"{out} "}


@pytest.mark.parametrize("flag", ["--trace", "--out"])
def test_a_name_that_is_no_text_is_refused(refused: Any, flag: str) -> None:
    name = os.fsdecode(b"odd\xff.csv")
    trace = () if flag == "--trace" else ("--trace", "azure-code", "--offline", "--num-requests", "4")
    assert "[name-not-text]" in refused("odd\\xff.csv is not UTF-8", "replay", *trace, flag, name, "-v")
