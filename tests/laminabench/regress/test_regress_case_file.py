"""Case files are read as they are meant, and what is wrong in one is told with file and case."""

from __future__ import annotations

from pathlib import Path

import pytest

from laminabench.analysis.metrics_table import IN_GOLDENS
from laminabench.errors import UserError
from laminabench.regress.case_file import MEASURED_TOLERANCE, Case, CaseFile, read_cases


def read(tmp_path: Path, text: str) -> CaseFile:
    path = tmp_path / "cases.toml"
    path.write_text(text)
    return read_cases(path)


def only(tmp_path: Path, text: str) -> Case:
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
        only(tmp_path, text)
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
        ("[case", "not valid TOML"),
    ],
)
def test_what_is_wrong_in_the_file(tmp_path: Path, text: str, code: str) -> None:
    with pytest.raises(UserError, match=code):
        read(tmp_path, text)
