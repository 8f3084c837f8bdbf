"""Goldens: what a case file asks for, what moved since and why, and how that is written."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import pytest

from laminabench.analysis.metrics_table import IN_GOLDENS
from laminabench.render.sheets.check import lines, write_junit, write_markdown
from laminabench.util.errors import UserError
from laminabench.workflows.check.case_file import LEAST_ROUNDS, MEASURED_TOLERANCE, Case, CaseFile, read_cases
from laminabench.workflows.check.golden import Obtained, Value, goldens_in, read_golden, write_golden
from laminabench.workflows.check.verdict import Verdict, causes, change_interval, direction, judge, stale

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


def case(*metrics: str, tolerance: float = 0.0, live: bool = False, alongside: bool = False) -> Case:
    flags = {"trace": "t", **({"backend": "live"} if live else {})}
    return Case("one", flags, flags if alongside else None, (), metrics, dict.fromkeys(metrics, tolerance), 4)


def obtained(facts: dict[str, Any] | None = None, **metrics: Value) -> Obtained:
    return Obtained(metrics, facts or FACTS)


def live(cpu: str = "one") -> dict[str, Any]:
    return {**FACTS, "backend": "live", "host": {"cpu": cpu, "cores": 2}}


@pytest.mark.parametrize(
    ("tolerance", "was", "is_", "status"),
    [
        (0.0, 10.0, 10.0, "same"),
        (0.0, 10.0, 10.000000000000002, "moved"),
        (0.02, 100.0, 102.0, "same"),
        (0.02, 100.0, 97.9, "moved"),
        (0.0, None, None, "same"),
        (0.0, None, 1.0, "moved"),
        (0.0, 1.0, None, "moved"),
        (0.0, 0.0, 0.0, "same"),
        (0.0, 0.0, 1.0, "moved"),
    ],
)
def test_what_is_modelled_is_exact_unless_a_tolerance_is_given(
    tolerance: float, was: float | None, is_: float | None, status: str
) -> None:
    verdict = judge(case("x", tolerance=tolerance), obtained(x=was), obtained(x=is_), 1.0)
    assert (verdict.status, verdict.failed) == (status, status == "moved")
    if not was or is_ is None:  # nothing to divide by
        assert verdict.describe()["metrics"][0]["change"] is None


def test_a_change_of_the_last_bit_is_shown() -> None:
    verdict = judge(case("mean_batch"), obtained(mean_batch=10.0), obtained(mean_batch=10.000000000000002), 1)
    assert lines(verdict)[0] == "mean_batch 10.0 10.000000000000002 +1.8e-14 % better"


def test_a_metric_that_the_golden_lacks_moved() -> None:
    verdict = judge(case("x", "y"), obtained(x=1.0), obtained(x=1.0, y=2.0), 1.0)
    assert [change.metric for change in verdict.moved] == ["y"]


def test_measured_rounds_are_separated_by_their_interval() -> None:
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
    alongside = judge(case("x", live=True, alongside=True), golden, now, 1.0)
    assert alongside.status == "moved"
    assert any(cause.startswith("the machine: cpu other -> one") for cause in alongside.causes)


def test_what_was_modelled_and_is_measured_now_moved() -> None:
    verdict = judge(case("x", live=True), obtained(x=1.0), obtained(live(), x=[1.0] * 4), 1.0)
    assert verdict.status == "moved"


@pytest.mark.parametrize(
    ("part", "name", "value", "reported"),
    [
        ("trace", "sha256", "2" * 64, "the trace: sha256 111111111111… -> 222222222222…"),
        ("deployment", "usd_per_hour", 44.0, "the deployment or its price: usd_per_hour 40 -> 44 (+0.1)"),
        ("case", "batches", 3, "the case itself: batches not there -> 3"),
    ],
)
def test_the_cause_is_the_input_that_differs(part: str, name: str, value: object, reported: str) -> None:
    now = copy.deepcopy(FACTS)
    now[part][name] = value
    first, *rest = causes(FACTS, now)
    assert first == reported
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
    saved = obtained(live(), x=0.1 + 0.2, y=None, z=[1.0, 2.5])
    write_golden(tmp_path, "one", saved)
    (tmp_path / "other.json").write_text("{}")
    assert read_golden(tmp_path, "one") == saved
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
def test_a_damaged_golden_is_reported(tmp_path: Path, was: str, becomes: str) -> None:
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


SEEDS = range(200)
NOISE, TOLERANCE, ROUNDS = 0.01, 0.01, 10


def measured_rounds(rng: np.random.Generator, middle: float) -> list[float]:
    return list(middle * np.exp(rng.normal(0, NOISE, ROUNDS)))


def moves(seed: int, change: float) -> bool:
    rng = np.random.default_rng(seed)
    result = change_interval(measured_rounds(rng, 100), measured_rounds(rng, 100 * (1 + change)))
    return result.low > TOLERANCE or result.high < -TOLERANCE


@pytest.mark.parametrize("change", [-0.03, 0.03])
def test_a_change_of_three_per_cent_is_detected_in_one_per_cent_of_noise(change: float) -> None:
    assert sum(moves(seed, change) for seed in SEEDS) >= 0.95 * len(SEEDS)


def test_noise_alone_is_no_change() -> None:
    assert sum(moves(seed, 0) for seed in SEEDS) <= 0.05 * len(SEEDS)


@pytest.mark.parametrize("noise", ["normal", "heavy"])
def test_the_interval_covers_the_truth_as_often_as_it_says(noise: str) -> None:
    covered = 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        draw = rng.standard_cauchy if noise == "heavy" else rng.standard_normal
        before, after = (list(middle * np.exp(0.01 * draw(6))) for middle in (1.0, 1.1))
        result = change_interval(before, after)
        covered += result.low <= 0.1 <= result.high
    assert 0.92 <= covered / len(SEEDS) < 1


def test_one_disturbed_round_moves_little() -> None:
    before = [99.0, 99.5, 100.0, 100.5, 101.0, 101.5]
    result = change_interval(before, [*before[:-1], 1.0])
    assert abs(result.estimate) < 0.01
    assert result.low < 0 < result.high


def test_its_ends_are_those_of_every_order_counted() -> None:
    """Of 5 and 5 measurements: cut off as many ratios as U can be small, counted out one by one."""
    first, second = [1.0, 1.13, 1.31, 1.52, 1.71], [2.0, 2.2, 2.44, 2.69, 2.93]
    below: dict[int, int] = {}
    for chosen in itertools.combinations(range(10), 5):
        u = sum(place - rank for rank, place in enumerate(chosen))
        below[u] = below.get(u, 0) + 1
    cut = max(u for u in below if 2 * sum(below[each] for each in range(u + 1)) <= 0.05 * 252)
    ratios = sorted(new / old for new in second for old in first)
    result = change_interval(first, second)
    assert (result.low, result.high) == (ratios[cut] - 1, ratios[-1 - cut] - 1)
    assert result.low <= result.estimate <= result.high


def test_the_fewest_rounds_can_detect_a_change() -> None:
    before = [1.0, 1.01, 1.02, 1.03]
    assert len(before) == LEAST_ROUNDS
    # All orders at the end of the distribution are few enough only from here on.
    assert change_interval(before, [2 * each for each in before]).low > 0.9


def read(tmp_path: Path, text: str) -> CaseFile:
    path = tmp_path / "cases.toml"
    path.write_text(text)
    return read_cases(path)


def only_case(tmp_path: Path, text: str) -> Case:
    (case,) = read(tmp_path, f'[case.one]\ntrace = "t"\n{text}').cases
    return case


def test_what_a_case_leaves_out(tmp_path: Path) -> None:
    file = read(tmp_path, '[case.one]\ntrace = "t"')
    (case,) = file.cases
    assert file.goldens == tmp_path / "golden"
    assert (case.metrics, case.measured, case.replays) == (IN_GOLDENS, False, 1)
    assert set(case.tolerance.values()) == {0.0}


def test_defaults_are_every_cases(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        'goldens = "kept"\n[defaults]\ntrace = "t"\nbatches = 2\n[case.a]\n[case.b]\nbatches = 3',
    )
    assert file.goldens == tmp_path / "kept"
    assert [case.flags for case in file.cases] == [{"trace": "t", "batches": 2}, {"trace": "t", "batches": 3}]
    assert [case.name for case in file.only(["b"])] == ["b"]
    with pytest.raises(UserError, match="case-unknown"):
        file.only(["bb"])


def test_tolerances_of_all_and_of_some(tmp_path: Path) -> None:
    assert set(only_case(tmp_path, "tolerance = 0.02").tolerance.values()) == {0.02}
    some = only_case(tmp_path, '[case.one.tolerance]\n"tbt_ms.p99" = 0.05').tolerance
    assert (some["tbt_ms.p99"], some["mean_batch"]) == (0.05, 0.0)


def test_what_is_measured_has_rounds_and_perhaps_another_side(tmp_path: Path) -> None:
    text = 'backend = "live"\nbatches = 2\nrounds = 6\n[case.one.against]\nbatches = 1'
    case = only_case(tmp_path, text)
    assert (case.measured, case.rounds, case.replays) == (True, 6, 12)
    assert case.against == {"trace": "t", "backend": "live", "batches": 1}
    assert set(case.tolerance.values()) == {MEASURED_TOLERANCE}


@pytest.mark.parametrize(
    "text",
    [
        "sytem = 'vllm'",
        "tolerence = 1",
        "batches = {a = 1}",
        "rounds = 5",
        "[case.one.against]\nbatches = 1",
        "backend = 'live'\nrounds = 3",
        "backend = 'live'\nagainst = 3",
        "backend = 'live'\n[case.one.against]\nbackend = 'modelled'",
        "metrics = 'tbt_ms.p99'",
        "metrics = []",
        "tolerance = 3",
        "tolerance = true",
        "[case.one.tolerance]\n'tbt_ms.p90' = 0.1",
    ],
)
def test_what_is_wrong_in_a_case(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="case-invalid") as error:
        only_case(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'cases.toml'}: case 'one' ")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "case-file-invalid"),
        ("[cases.one]", "case-file-invalid"),
        ("goldens = 3", "case-file-invalid"),
        ("case = 3", "case-file-invalid"),
        ("[case]\none = 3", "case-file-invalid"),
        ("[case.'../one']\ntrace = 't'", "case-file-invalid"),
        ("[case.one]\nsystem = 'vllm'", "case-invalid"),
        ("[case.one]\ntrace = 't'\nout = 'x'", "case-invalid"),
        ("[case.one]\ntrace = 't'\npolicy = 'evil:Policy'", "case-not-trusted"),
        ("[case.one]\ntrace = 't'\nsystem = 'openai'\nurl = 'http://127.0.0.1:9'", "case-not-trusted"),
        ("[case.one]\ntrace = 't'\nhost-async = 1", "replay-value"),
        ("[case.one]\ntrace = 't'\nbatches = [3, 4]", "replay-value"),
        ("[case.one]\ntrace = 't'\nburstiness = 2", "trace-burstiness"),
        ("[case", "not valid TOML"),
    ],
)
def test_what_is_wrong_in_the_file(tmp_path: Path, text: str, code: str) -> None:
    with pytest.raises(UserError, match=code):
        read(tmp_path, text)
