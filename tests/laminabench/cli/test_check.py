"""`laminabench check` as a person and a CI use it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from msgspec import structs

from laminabench.catalog.cost_file import load_costs, write_costs
from laminabench.catalog.costs import CostSet
from laminabench.sim.spec import Timing
from laminabench.systems.modelled import homogeneous
from laminabench.workflows.check.case_file import read_cases
from laminabench.workflows.check.golden import goldens_in

CHECK = ("check", "--cases", "cases.toml", "--jobs", "1")
ROOT = Path(__file__).parents[3]
TWO = """
[defaults]
trace = "profile:azure-code"
num-requests = 150

[case.vllm]
system = "vllm"

[case.lamina]
batches = 3
deployment = "4xh100+4xh20"
host-async = true
overlap = false
"""
LIVE = """
[case.live]
trace = "profile:azure-code"
num-requests = 20
scale-lengths = 0.1
backend = "live"
model = "llama-tiny"
max-num-seqs = 16
rounds = 4
metrics = ["throughput_tokens_per_s", "tbt_ms.p50"]
"""


@pytest.fixture
def cases(shell: Any) -> Path:
    """Two cases with goldens."""
    del shell  # which has gone to a folder of its own
    path = Path("cases.toml")
    path.write_text(TWO)
    return path


def times(costs: CostSet, factor: float) -> CostSet:
    """Everything that a device does takes so many times as long; the host does not."""

    def slower(row: Any) -> Any:
        numbers = {name: value for name, value in structs.asdict(row).items() if isinstance(value, float)}
        durations = {name: value * factor for name, value in numbers.items() if name.endswith("_s")}
        shares = {name: value / factor for name, value in numbers.items() if name.endswith("_efficiency")}
        return structs.replace(row, **durations, **shares)

    gemm = {key: slower(row) for key, row in costs.gemm.items()}
    return structs.replace(
        costs, gemm=gemm, attention={key: slower(row) for key, row in costs.attention.items()}
    )


@pytest.mark.usefixtures("cases")
def test_from_no_golden_to_one_that_holds(shell: Any, as_json: Any) -> None:
    code, out, err = shell(*CHECK)
    assert (code, goldens_in(Path("golden"))) == (1, [])
    assert "vllm: there is no golden" in out
    assert "2 without a golden; if that is meant, `laminabench check --update` keeps it" in err
    assert as_json(*CHECK, "--update")["updated"] == ["vllm", "lamina"]
    saved = Path("golden/lamina.json").read_bytes()
    facts = as_json(*CHECK)
    assert facts["passed"]
    assert [case["status"] for case in facts["cases"]] == ["same", "same"]
    # What is the same is left as it is, with the commit that it was made by.
    assert as_json(*CHECK, "--update")["updated"] == []
    assert Path("golden/lamina.json").read_bytes() == saved
    command = json.loads(saved)["facts"]["command"]
    assert "--host-async --no-overlap" in command
    again = as_json(*command.split()[1:])
    assert again["mean_batch"] == json.loads(saved)["metrics"]["mean_batch"]


@pytest.mark.usefixtures("cases")
def test_processes_come_to_the_same(as_json: Any) -> None:
    as_json(*CHECK, "--update")
    assert as_json(*CHECK[:-1], "2")["passed"]


@pytest.mark.usefixtures("shell")
def test_an_injected_slowdown_of_three_per_cent_is_detected_with_its_coefficients(
    shell: Any, as_json: Any
) -> None:
    write_costs(load_costs("vllm-0.14"), Path("mine.toml"))
    Path("cases.toml").write_text(TWO.replace("[case.vllm]", 'costs = "mine.toml"\n[case.vllm]'))
    as_json(*CHECK, "--update")
    write_costs(times(load_costs("vllm-0.14"), 1.03), Path("mine.toml"))
    code, out, err = shell(*CHECK, "--junit", "check.xml", "--markdown", "check.md")
    assert code == 1
    assert (
        err == "laminabench: check failed: 2 moved; if that is meant, `laminabench check --update` keeps it\n"
    )
    row = next(line for line in out.splitlines() if "vllm" in line and "throughput_tokens_per_s" in line)
    assert row.split()[-1] == "worse"
    # The host's part of an iteration was left alone.
    assert re.search(r" -[12]\.\d\d % ", row)
    assert re.search(r"vllm: likely cause: cost coefficients: gemm of h100 overhead_s .* \(\+0\.03\);", out)
    suite = Xml.parse("check.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")
    assert "| vllm | throughput_tokens_per_s |" in Path("check.md").read_text()
    assert as_json(*CHECK, "--update")["updated"] == ["vllm", "lamina"]
    assert as_json(*CHECK)["passed"]


@pytest.mark.usefixtures("cases")
def test_slower_code_is_detected_and_named(shell: Any, as_json: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    as_json(*CHECK, "--update")
    real = homogeneous.device_timing

    def slower(*given: Any) -> Timing:
        timing = real(*given)
        return dataclasses.replace(timing, mid_slice=timing.mid_slice * 1.03)

    monkeypatch.setattr(homogeneous, "device_timing", slower)
    code, out, _ = shell(*CHECK)
    assert code == 1
    assert "2 cases: 1 as their goldens say, 1 moved" in out
    assert "cost coefficients" not in out
    (cause,) = (line for line in out.splitlines() if "likely cause" in line)
    assert "the code" in cause or "nothing that is recorded" in cause


@pytest.mark.usefixtures("cases")
def test_a_better_number_moved_too(shell: Any, as_json: Any) -> None:
    as_json(*CHECK, "--update")
    path = Path("golden/vllm.json")
    golden = json.loads(path.read_text())
    golden["metrics"]["throughput_tokens_per_s"] *= 0.9
    golden["facts"]["trace"]["sha256"] = "0" * 64
    path.write_text(json.dumps(golden))
    code, out, _ = shell(*CHECK)
    assert code == 1
    assert re.search(r"throughput_tokens_per_s .* \+11\.11 %  better", out)
    assert "likely cause: the trace: sha256 000000000000… -> " in out


@pytest.mark.usefixtures("cases")
def test_a_golden_without_a_case(shell: Any, as_json: Any, cases: Path) -> None:
    as_json(*CHECK, "--update")
    Path("golden/mine.json").write_text("{}")
    cases.write_text(TWO.replace("case.vllm", "case.other"))
    code, out, _ = shell(*CHECK)
    assert code == 1
    assert "2 cases" not in out
    assert "vllm: the golden has no case any more" in out
    # With --only the other cases are not reported.
    assert shell(*CHECK, "--only", "lamina")[0] == 0
    assert as_json(*CHECK, "--update")["updated"] == ["other", "vllm"]
    assert {path.name for path in Path("golden").iterdir()} == {"lamina.json", "mine.json", "other.json"}


@pytest.mark.usefixtures("cases")
def test_half_an_update_is_none(refused: Any, cases: Path) -> None:
    cases.write_text(TWO.replace("overlap = false", 'pipelining = "serial"'))
    refused("case 'lamina': serial execution has one batch", *CHECK, "--update")
    assert not Path("golden").exists()


@pytest.mark.usefixtures("cases")
@pytest.mark.parametrize("flags", [("--junit", "cases.toml/x.xml"), ("--markdown", "cases.toml/x.md"), ()])
def test_an_unwritable_output_is_reported_before_anything_runs(
    refused: Any, cases: Path, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not flags:
        cases.write_text(f'goldens = "cases.toml/golden"\n{TWO}')
        flags = ("--update",)
    monkeypatch.delattr("laminabench.cli.check._replayed")
    refused("cannot write cases.toml/", *CHECK, *flags)


@pytest.mark.usefixtures("cases")
def test_an_update_writes_a_damaged_golden_anew(refused: Any, as_json: Any) -> None:
    as_json(*CHECK, "--update")
    Path("golden/vllm.json").write_text("{")
    refused("golden/vllm.json is damaged", *CHECK)
    Path("golden/vllm.json").write_text('{"format": "laminabench-golden"}')
    assert as_json(*CHECK, "--update")["updated"] == ["vllm"]


@pytest.mark.parametrize(
    ("was", "becomes", "reported"),
    [
        ('"vllm"', '"vlm"', "case 'vllm': no system is called 'vlm'; did you mean vllm"),
        ("batches = 3", "batchs = 3", "case 'lamina' has 'batchs', which is not known; did you mean batches"),
        (
            "batches = 3",
            'metrics = ["tbt.p50"]',
            "case 'lamina': no metric is called 'tbt.p50'; did you mean tbt_ms",
        ),
    ],
)
def test_what_a_replay_would_not_understand(
    refused: Any, cases: Path, was: str, becomes: str, reported: str
) -> None:
    cases.write_text(TWO.replace(was, becomes))
    refused(reported, *CHECK)


def test_missing_input_is_reported(refused: Any) -> None:
    refused("cannot read ci/regression.toml: No such file or directory\n", "check")


@pytest.mark.usefixtures("pretended")
def test_measurements_are_distinguished_from_noise(shell: Any, as_json: Any) -> None:
    Path("cases.toml").write_text(LIVE)
    as_json(*CHECK, "--update")
    path = Path("golden/live.json")
    golden = json.loads(path.read_text())
    measured = golden["metrics"]["throughput_tokens_per_s"]
    assert len(measured) == 4
    assert as_json(*CHECK)["passed"]

    def with_golden(factors: list[float]) -> tuple[int, str]:
        results = [value * factor for value, factor in zip(measured, factors, strict=True)]
        golden["metrics"]["throughput_tokens_per_s"] = results
        path.write_text(json.dumps(golden))
        return shell(*CHECK)[:2]

    # All but one round were faster by less or more than now: the interval has no change in it.
    assert with_golden([0.97, 1.03, 1.02, 0.98])[0] == 0
    code, out = with_golden([1.04, 1.05, 1.03, 1.06])
    assert code == 1
    assert re.search(r"throughput_tokens_per_s .* -4\.\d\d % \(-5\.66 to -2\.91\)  worse", out)
    golden["facts"]["host"]["cpu"] = "another"
    code, out = with_golden([1.5, 1.5, 1.5, 1.5])
    assert code == 0
    assert "1 case: 1 skipped" in out


@pytest.mark.usefixtures("pretended")
def test_a_ratio_is_compared_on_any_machine(shell: Any, as_json: Any) -> None:
    Path("cases.toml").write_text(f"{LIVE}\n[case.live.against]\nmax-num-seqs = 1\n")
    as_json(*CHECK, "--update")
    path = Path("golden/live.json")
    golden = json.loads(path.read_text())
    # Made-up iterations take as long with more requests in them.
    assert all(ratio > 1.5 for ratio in golden["metrics"]["throughput_tokens_per_s"])
    golden["facts"]["host"]["cpu"] = "another"
    path.write_text(json.dumps(golden))
    assert as_json(*CHECK)["cases"][0]["status"] == "same"
    golden["metrics"]["throughput_tokens_per_s"] = [1.0, 1.0, 1.0, 1.0]
    path.write_text(json.dumps(golden))
    code, out, _ = shell(*CHECK)
    assert code == 1
    assert "likely cause: the machine: cpu another -> " in out


@pytest.mark.usefixtures("pretended")
def test_what_is_measured_as_nothing_cannot_be_compared(refused: Any) -> None:
    Path("cases.toml").write_text(LIVE.replace('"tbt_ms.p50"', '"preemptions"'))
    refused("case 'live': preemptions is not above zero in every round", *CHECK)


def test_the_projects_own_cases_are_whole() -> None:
    """CI runs them; here: each has its golden, is understood, and needs nothing that a machine may lack."""
    file = read_cases(ROOT / "ci" / "regression.toml")
    for case in file.cases:
        assert case.flags["trace"].startswith("profile:")
        assert not case.measured
    assert file.goldens.resolve() == ROOT / "results" / "golden"
    assert goldens_in(file.goldens) == sorted(case.name for case in file.cases)
    assert len(file.cases) >= 8
