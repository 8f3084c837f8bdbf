"""Steps that succeed, fail and are late: what is written of each, and that the others go on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import bench
from gpu_window import all_steps, steps
from laminabench.bench.frame import Report
from laminabench.cli.main import run
from laminabench.util.errors import UserError

JUNIT = """<testsuites><testsuite tests="3" failures="1" errors="0" skipped="1">
<testcase classname="tests.a" name="right"/><testcase classname="tests.a" name="left"><skipped/></testcase>
<testcase classname="tests.a" name="wrong"><failure/></testcase></testsuite></testsuites>"""


class Machine:
    """Answers each step's command by its name."""

    def __init__(self, **answers: tuple[int | None, str, str]) -> None:
        self.answers, self.requested, self.limits = answers, [], []  # type: ignore[var-annotated]

    def __call__(self, command: Sequence[str], limit_s: float) -> tuple[int | None, str, str]:
        self.limits.append(limit_s)
        if "--only" not in command:
            self.requested.append("tests")
            target = next(word for word in command if word.startswith("--junit-xml="))
            Path(target.partition("=")[2]).write_text(JUNIT)
            return 1, "1 failed", ""
        name = command[command.index("--only") + 1]
        self.requested.append(name)
        return self.answers.get(name, (0, json.dumps({"benchmark": name, "rows": []}), ""))


def _run(folder: Path | None, machine: Machine, *, quick: bool = False) -> Report:
    return all_steps.run(folder, quick=quick, device=lambda: "NVIDIA H100 80GB HBM3", runner=machine)


def test_each_step_s_results_are_written(tmp_path: Path) -> None:
    rows = [{"batch": 20, "share": {"median": 0.91, "min": 0.9, "max": 0.92}, "refused": {}, "met": True}]
    result = {"benchmark": "attention-cuda", "rows": rows, "met": True}
    machine = Machine(attention=(0, json.dumps(result), ""))
    report = _run(tmp_path / "out", machine)
    assert machine.requested == list(steps.STEPS)
    assert json.loads((tmp_path / "out" / "attention.json").read_text()) == result
    facts = json.loads((tmp_path / "out" / "gpu.json").read_text())
    outcomes = {step["name"]: step["outcome"] for step in facts["steps"]}
    assert outcomes == {
        "card": "measured", "tests": "missed", "attention": "met", "engine": "measured", "vllm": "measured",
        "workers": "measured", "fhbn": "measured", "kernels": "measured", "predicted": "modelled",
    }  # fmt: skip
    tests = json.loads((tmp_path / "out" / "tests.json").read_text())
    assert (tests["tests"], tests["skipped"], tests["failed"]) == (3, 1, ["tests.a::wrong"])
    text = (tmp_path / "out" / "report.md").read_text()
    assert "NVIDIA H100 80GB HBM3" in text
    assert "| batch | share | met |" in text
    assert "| 20 | 0.91 | True |" in text
    assert not report.failed


def test_one_that_fails_does_not_keep_others(tmp_path: Path) -> None:
    machine = Machine(
        card=(2, "", "laminabench: error: no\n"),
        attention=(None, "", ""),
        engine=(70, "nonsense", ""),
        predicted=(2, json.dumps({"error": {"code": "bench-gpu-no-runs", "message": "there are none"}}), ""),
    )
    for old in ("engine.json", "kernels.toml"):
        (tmp_path / old).write_text("of an earlier run")
    report = _run(tmp_path, machine)
    steps_ = json.loads((tmp_path / "gpu.json").read_text())["steps"]
    why = {step["name"]: step["why"] for step in steps_ if step["outcome"] == "failed"}
    assert list(why) == ["card", "attention", "engine", "predicted"]
    assert "error: no" in why["card"]
    assert why["predicted"] == "there are none"
    assert report.failed
    assert report.facts["failed"] == list(why)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fhbn.json", "gpu.json", "kernels.json", "report.md", "tests.json", "vllm.json", "workers.json"
    ]  # fmt: skip


@pytest.mark.parametrize(("quick", "most_s"), [(False, 600), (True, 300)])
def test_all_steps_end_in_time_and_inherit_what_others_leave(
    quick: bool, most_s: float, tmp_path: Path
) -> None:
    limits = [step.seconds(quick=quick) for step in steps.STEPS.values()]
    assert sum(limits) <= most_s
    machine = Machine()
    _run(tmp_path, machine, quick=quick)
    assert machine.requested == list(steps.STEPS)
    # Here they take next to nothing.
    assert machine.limits == pytest.approx([sum(limits[: n + 1]) for n in range(len(limits))], abs=5)


@pytest.mark.parametrize(("name", "code"), [("cards", "bench-gpu-step"), ("tests", "bench-gpu-tests")])
def test_what_is_no_step_of_this_process(name: str, code: str) -> None:
    with pytest.raises(UserError, match=code):
        steps.measure(name, quick=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("only", [[], ["--only", "card"]])
def test_without_a_gpu_one_sentence_says_so(
    only: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["gpu", *only, "--out", str(tmp_path / "out"), "-v"], command=bench.bench)
    assert ended.value.code == 2
    assert "[bench-no-gpu]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
