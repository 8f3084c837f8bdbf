"""What moved, which way, and what it is put down to; and how that is written."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from laminabench.errors import UserError
from laminabench.present.check import lines, write_junit, write_markdown
from laminabench.regress.case_file import Case
from laminabench.regress.causes import causes
from laminabench.regress.golden import Obtained, Value, goldens_in, read_golden, write_golden
from laminabench.regress.verdict import Verdict, direction, judge, stale

FACTS: dict[str, Any] = {
    "backend": "modelled",
    "laminabench": {"version": "1.0", "commit": "abc"},
    "case": {"trace": "t"},
    "trace": {"name": "t", "sha256": "1" * 64},
    "coefficients": {"gemm of h100": {"set": "s", "overhead_s": 1e-6}, "host of h100": {"per_step_s": 2e-3}},
    "deployment": {"usd_per_hour": 40.0},
    "host": {"cpu": "one", "cores": 2},
}
NEXT = {"version": "1.0", "commit": "def"}


def case(*metrics: str, tolerance: float = 0.0, live: bool = False, beside: bool = False) -> Case:
    flags = {"trace": "t", **({"backend": "live"} if live else {})}
    return Case("one", flags, flags if beside else None, (), metrics, dict.fromkeys(metrics, tolerance), 4)


def obtained(facts: dict[str, Any] | None = None, **metrics: Value) -> Obtained:
    return Obtained(metrics, facts or FACTS)


def live(cpu: str = "one") -> dict[str, Any]:
    return {**FACTS, "backend": "live", "host": {"cpu": cpu, "cores": 2}}


def test_what_is_modelled_is_exact() -> None:
    golden = obtained(mean_batch=10.0)
    assert judge(case("mean_batch"), golden, obtained(mean_batch=10.0), 1.0).status == "same"
    verdict = judge(case("mean_batch"), golden, obtained(mean_batch=10.000000000000002), 1.0)
    assert verdict.failed
    assert lines(verdict)[0] == "mean_batch 10.0 10.000000000000002 +1.8e-14 % better"


def test_unless_a_tolerance_is_given() -> None:
    golden, wide = obtained(mean_batch=100.0), case("mean_batch", tolerance=0.02)
    assert judge(wide, golden, obtained(mean_batch=102.0), 1.0).status == "same"
    assert judge(wide, golden, obtained(mean_batch=97.9), 1.0).status == "moved"


@pytest.mark.parametrize(("was", "is_"), [(None, 1.0), (1.0, None), (0.0, 1.0)])
def test_what_has_nothing_to_divide_by_moved_all_the_same(was: float | None, is_: float | None) -> None:
    verdict = judge(case("x"), obtained(x=was), obtained(x=is_), 1.0)
    assert verdict.status == "moved"
    assert verdict.describe()["metrics"][0]["change"] is None
    assert judge(case("x"), obtained(x=was), obtained(x=was), 1.0).status == "same"


def test_a_metric_that_the_golden_lacks_moved() -> None:
    verdict = judge(case("x", "y"), obtained(x=1.0), obtained(x=1.0, y=2.0), 1.0)
    assert [change.metric for change in verdict.moved] == ["y"]


def test_measured_rounds_are_held_apart_by_their_interval() -> None:
    measured = case("x", tolerance=0.01, live=True)
    golden = obtained(live(), x=[100.0, 101.0, 99.0, 100.5, 99.5])
    noisy = judge(measured, golden, obtained(live(), x=[99.0, 102.0, 98.0, 101.0, 100.0]), 1.0)
    slower = judge(measured, golden, obtained(live(), x=[96.0, 95.5, 95.0, 96.5, 97.0]), 1.0)
    assert (noisy.status, slower.status) == ("same", "moved")
    (change,) = slower.changes
    assert change.interval is not None
    assert change.interval[0] < -0.04 < change.interval[1] < -0.01
    assert "(" in lines(slower)[0]


def test_on_another_machine_only_a_ratio_is_compared() -> None:
    golden = obtained(live("other"), x=[1.0, 1.01, 1.02, 1.03])
    now = obtained(live(), x=[2.0, 2.02, 2.04, 2.06])
    alone = judge(case("x", live=True), golden, now, 1.0)
    assert (alone.status, alone.failed) == ("skipped", False)
    assert "measured on another machine (other, 2 cores)" in alone.note
    beside = judge(case("x", live=True, beside=True), golden, now, 1.0)
    assert beside.status == "moved"
    assert any(cause.startswith("the machine: cpu other -> one") for cause in beside.causes)


def test_what_was_modelled_and_is_measured_now_moved() -> None:
    verdict = judge(case("x", live=True), obtained(x=1.0), obtained(live(), x=[1.0] * 4), 1.0)
    assert verdict.status == "moved"


@pytest.mark.parametrize(
    ("part", "name", "value", "told"),
    [
        ("trace", "sha256", "2" * 64, "the trace: sha256 111111111111… -> 222222222222…"),
        ("deployment", "usd_per_hour", 44.0, "the deployment or its price: usd_per_hour 40 -> 44 (+0.1)"),
        ("case", "batches", 3, "the case itself: batches not there -> 3"),
    ],
)
def test_the_cause_is_the_input_that_differs(part: str, name: str, value: object, told: str) -> None:
    now = copy.deepcopy(FACTS)
    now[part][name] = value
    first, *rest = causes(FACTS, now)
    assert first == told
    assert rest == ["not the code: laminabench 1.0 (abc) then and now"]


def test_coefficients_are_named_with_their_change() -> None:
    now = copy.deepcopy(FACTS)
    now["coefficients"]["gemm of h100"]["overhead_s"] = 1.03e-6
    first, second = causes(FACTS, {**now, "laminabench": NEXT})
    assert first == "cost coefficients: gemm of h100 overhead_s 1e-06 -> 1.03e-06 (+0.03)"
    assert second == "perhaps also the code: laminabench 1.0 (abc) -> 1.0 (def)"


def test_without_another_input_it_is_the_code() -> None:
    assert causes(FACTS, {**FACTS, "laminabench": NEXT}) == (
        "nothing but the code: laminabench 1.0 (abc) -> 1.0 (def)",
    )
    dirty = {**FACTS, "laminabench": {"version": "1.0", "commit": "abc-dirty"}}
    assert causes(dirty, dirty)[0].startswith("changes to the code that are not committed, perhaps")


@pytest.mark.parametrize(
    ("metric", "rise", "fall"),
    [
        ("throughput_tokens_per_s", "better", "worse"),
        ("whole_run.tbt_ms.p99", "worse", "better"),
        ("cost.usd_per_million_tokens", "worse", "better"),
        ("cost.tokens_per_usd", "better", "worse"),
        ("mean_batches.0", "better", "worse"),
        ("tbt_ms.max", "worse", "better"),
        ("energy.joules_per_token", "worse", "better"),
        ("utilisation.model", "better", "worse"),
        ("bubbles.whole_run.devices.0", "worse", "better"),
        ("kv.peak_tokens", "up", "down"),
    ],
)
def test_which_way_is_better(metric: str, rise: str, fall: str) -> None:
    assert (direction(metric, 0.1), direction(metric, -0.1), direction(metric, 0)) == (rise, fall, "same")


def test_a_golden_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = obtained(live(), x=0.1 + 0.2, y=None, z=[1.0, 2.5])
    write_golden(tmp_path, "one", kept)
    (tmp_path / "other.json").write_text("{}")
    assert read_golden(tmp_path, "one") == kept
    assert read_golden(tmp_path, "two") is None
    assert goldens_in(tmp_path) == ["one"]


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('"x": 1.0', '"x": "1"'),
        ('"x": 1.0', '"x": NaN'),
        ('"x": 1.0', '"x": []'),
        ('"x": 1.0', '"x": [1.0, 0.0]'),
        ('"x": 1.0', '"x": [1.0, null]'),
        ('"commit"', '"comit"'),
        ("{", "["),
        ('"format_version": 1', '"format_version": 9'),
    ],
)
def test_a_damaged_golden_is_told(tmp_path: Path, was: str, becomes: str) -> None:
    write_golden(tmp_path, "one", obtained(x=1.0))
    path = tmp_path / "one.json"
    path.write_text(path.read_text().replace(was, becomes, 1))
    with pytest.raises(UserError, match=r"golden-(damaged|format)"):
        read_golden(tmp_path, "one")


def verdicts() -> list[Verdict]:
    strange = {**FACTS, "trace": {"name": "<b>|`x`\x01", "sha256": "1" * 64}, "laminabench": NEXT}
    return [
        judge(case("mean_batch"), obtained(mean_batch=10.0), obtained(strange, mean_batch=9.0), 1.5),
        Verdict("two", "same", "modelled", wall_s=0.5),
        judge(case("x", live=True), obtained(live("other"), x=[1.0] * 4), obtained(live(), x=[1.0] * 4), 1.0),
        stale("gone"),
    ]


def test_junit_can_be_read_back(tmp_path: Path) -> None:
    write_junit(tmp_path / "check.xml", verdicts())
    suite = Xml.parse(tmp_path / "check.xml").getroot().find("testsuite")
    assert suite is not None
    facts = {"tests": "4", "failures": "2", "errors": "0", "skipped": "1", "time": "3.000"}
    assert suite.attrib == {"name": "laminabench.check", **facts}
    assert [each.get("name") for each in suite] == ["one", "two", "one", "gone"]
    failure = suite[0].find("failure")
    assert failure is not None
    assert failure.text is not None
    assert failure.text.startswith(
        "mean_batch 10 9 -10.00 % worse\nlikely cause: the trace: name t -> <b>|`x`?"
    )
    assert suite[1].find("failure") is None
    assert suite[2].find("skipped") is not None


def test_markdown_lets_no_name_break_out(tmp_path: Path) -> None:
    write_markdown(tmp_path / "check.md", verdicts())
    text = (tmp_path / "check.md").read_text()
    assert "4 cases: 1 as their goldens say, 1 moved, 1 with a golden but no case, 1 skipped." in text
    assert "| one | mean_batch | 10 | 9 | -10.00 % | worse |" in text.splitlines()
    assert r"&lt;b>\|'x'" in text
    assert "- `gone`: the golden has no case any more" in text.splitlines()
