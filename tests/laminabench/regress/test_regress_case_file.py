"""Case files are read as they are meant, and what is wrong in one is told with file and case."""

from __future__ import annotations

from pathlib import Path

import pytest

from laminabench.errors import UserError
from laminabench.regress.case_file import MEASURED_TOLERANCE, METRICS, Case, CaseFile, read_cases

FLAGS = ("trace", "system", "model", "backend", "batches", "host-async", "num-requests", "price")


def read(tmp_path: Path, text: str) -> CaseFile:
    path = tmp_path / "cases.toml"
    path.write_text(text)
    return read_cases(path, FLAGS)


def only(tmp_path: Path, text: str) -> Case:
    (case,) = read(tmp_path, f'[case.one]\ntrace = "t"\n{text}').cases
    return case


def test_what_a_case_leaves_out(tmp_path: Path) -> None:
    file = read(tmp_path, '[case.one]\ntrace = "t"')
    (case,) = file.cases
    assert file.goldens == tmp_path / "golden"
    assert (case.metrics, case.measured, case.replays) == (METRICS, False, 1)
    assert set(case.tolerance.values()) == {0.0}


def test_defaults_are_every_cases(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        'goldens = "kept"\n[defaults]\ntrace = "t"\nbatches = 2\n[case.a]\n[case.b]\nbatches = 3',
    )
    assert file.goldens == tmp_path / "kept"
    assert [case.flags for case in file.cases] == [{"trace": "t", "batches": 2}, {"trace": "t", "batches": 3}]
    assert [case.name for case in file.only(["b"])] == ["b"]
    with pytest.raises(UserError, match="has no case 'bb'; did you mean b"):
        file.only(["bb"])


def test_tolerances_of_all_and_of_some(tmp_path: Path) -> None:
    assert set(only(tmp_path, "tolerance = 0.02").tolerance.values()) == {0.02}
    some = only(tmp_path, '[case.one.tolerance]\n"tbt_ms.p99" = 0.05').tolerance
    assert (some["tbt_ms.p99"], some["mean_batch"]) == (0.05, 0.0)


def test_what_is_measured_has_rounds_and_perhaps_another_side(tmp_path: Path) -> None:
    text = 'backend = "live"\nbatches = 2\nrounds = 6\n[case.one.against]\nbatches = 1'
    case = only(tmp_path, text)
    assert (case.measured, case.rounds, case.replays) == (True, 6, 12)
    assert case.against == {"trace": "t", "backend": "live", "batches": 1}
    assert set(case.tolerance.values()) == {MEASURED_TOLERANCE}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sytem = 'vllm'", "case 'one' has 'sytem', which is not known; did you mean system"),
        ("tolerence = 1", "did you mean tolerance"),
        ("batches = {a = 1}", "'batches' that is no value of a flag"),
        ("rounds = 5", "'rounds', which is for what is measured"),
        ("[case.one.against]\nbatches = 1", "'against', which is for what is measured"),
        ("backend = 'live'\nrounds = 3", "has 3 rounds; it takes 4 at least"),
        ("backend = 'live'\nagainst = 3", "no table of the flags that differ"),
        ("backend = 'live'\n[case.one.against]\nbackend = 'modelled'", "both sides are measured"),
        ("metrics = 'tbt_ms.p99'", "no list of names"),
        ("metrics = []", "no list of names"),
        ("tolerance = 3", "the tolerance 3 for throughput_tokens_per_s; it is a share"),
        ("tolerance = true", "it is a share"),
        ("[case.one.tolerance]\n'tbt_ms.p90' = 0.1", "not one of its metrics; did you mean tbt_ms.p"),
    ],
)
def test_what_is_wrong_in_a_case(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as error:
        only(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'cases.toml'}: case 'one' ")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"has no case; write one as \[case\.NAME\]"),
        ("[cases.one]", "has 'cases', which is not known; did you mean case"),
        ("goldens = 3", "goldens must be a folder's path"),
        ("case = 3", r"case must be a table, as in \[case\]"),
        ("[case]\none = 3", "case.one must be a table"),
        ("[case.'../one']\ntrace = 't'", "cannot be a case's name"),
        ("[case.one]\nsystem = 'vllm'", "case 'one' has no trace; 'profile:NAME'"),
        ("[case", "not valid TOML"),
    ],
)
def test_what_is_wrong_in_the_file(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        read(tmp_path, text)
