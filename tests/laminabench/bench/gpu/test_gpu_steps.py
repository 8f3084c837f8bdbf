"""Steps that succeed, fail and are late: what is written of each, and that the others go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from laminabench.bench.gpu import steps
from laminabench.errors import UserError

Shell = Callable[..., tuple[int, str, str]]

JUNIT = """<testsuites><testsuite tests="3" failures="1" errors="0" skipped="1">
<testcase classname="tests.a" name="right"/><testcase classname="tests.a" name="left"><skipped/></testcase>
<testcase classname="tests.a" name="wrong"><failure/></testcase></testsuite></testsuites>"""


class Machine:
    """Answers each step's command by its name."""

    def __init__(self, **answers: tuple[int | None, str, str]) -> None:
        self.answers, self.asked, self.limits = answers, [], []  # type: ignore[var-annotated]

    def __call__(self, command: Sequence[str], limit_s: float) -> tuple[int | None, str, str]:
        self.limits.append(limit_s)
        if "--only" not in command:
            self.asked.append("tests")
            target = next(word for word in command if word.startswith("--junit-xml="))
            Path(target.partition("=")[2]).write_text(JUNIT)
            return 1, "1 failed", ""
        name = command[command.index("--only") + 1]
        self.asked.append(name)
        return self.answers.get(name, (0, json.dumps({"benchmark": name, "rows": []}), ""))


def _run(folder: Path | None, machine: Machine, *, quick: bool = False) -> steps.Report:
    return steps.run(folder, quick=quick, device=lambda: "NVIDIA H100 80GB HBM3", runner=machine)


def test_what_each_step_found_is_written(tmp_path: Path) -> None:
    rows = [{"batch": 20, "share": {"median": 0.91, "min": 0.9, "max": 0.92}, "refused": {}, "met": True}]
    found = {"benchmark": "attention-cuda", "rows": rows, "met": True}
    machine = Machine(attention=(0, json.dumps(found), ""))
    report = _run(tmp_path / "out", machine)
    assert machine.asked == list(steps.STEPS)
    assert json.loads((tmp_path / "out" / "attention.json").read_text()) == found
    facts = json.loads((tmp_path / "out" / "gpu.json").read_text())
    outcomes = {step["name"]: step["outcome"] for step in facts["steps"]}
    assert outcomes == {
        "card": "measured", "tests": "missed", "attention": "met", "engine": "measured",
        "workers": "measured", "fhbn": "measured",
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
        card=(2, "", "laminabench: error: no\n"), attention=(None, "", ""), engine=(70, "nonsense", "")
    )
    report = _run(tmp_path, machine)
    steps_ = json.loads((tmp_path / "gpu.json").read_text())["steps"]
    why = {step["name"]: step["why"] for step in steps_ if step["outcome"] == "failed"}
    assert list(why) == ["card", "attention", "engine"]
    assert "error: no" in why["card"]
    assert report.failed
    assert report.facts["failed"] == list(why)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fhbn.json", "gpu.json", "report.md", "tests.json", "workers.json"
    ]  # fmt: skip


def test_no_step_begins_without_time_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "TOTAL_S", steps.LEAST_S - 1)
    machine = Machine()
    report = _run(tmp_path, machine)
    assert not machine.asked
    assert report.facts["failed"] == list(steps.STEPS)
    told = json.loads((tmp_path / "gpu.json").read_text())["steps"]
    assert [step["name"] for step in told] == list(steps.STEPS)
    monkeypatch.setattr(steps, "QUICK_S", steps.LEAST_S + 20)
    _run(tmp_path, machine, quick=True)
    assert machine.asked == list(steps.STEPS)
    assert all(limit <= steps.LEAST_S + 20 for limit in machine.limits)


def test_the_folder_has_the_cards_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run(None, Machine()).facts["folder"] == "results/h100-80gb-hbm3"
    assert (tmp_path / "results" / "h100-80gb-hbm3" / "report.md").exists()


def test_who_is_late_has_no_code() -> None:
    assert steps._run(["sleep", "60"], 0.05) == (None, "", "")
    code, out, err = steps._run(["sh", "-c", "echo one; echo two >&2; exit 3"], 60)
    assert (code, out, err) == (3, "one\n", "two\n")


@pytest.mark.parametrize(("name", "code"), [("cards", "bench-gpu-step"), ("tests", "bench-gpu-tests")])
def test_what_is_no_step_of_this_process(name: str, code: str) -> None:
    with pytest.raises(UserError, match=code):
        steps.measure(name, quick=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("only", [[], ["--only", "card"]])
def test_without_a_gpu_one_sentence_says_so(only: list[str], shell: Shell, tmp_path: Path) -> None:
    code, _, err = shell("gpu", *only, "--out", str(tmp_path / "out"), "-v")
    assert code == 2
    assert "[bench-no-gpu]" in err
    assert not (tmp_path / "out").exists()
