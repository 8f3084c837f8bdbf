"""Validations as folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laminabench.util.errors import UserError
from laminabench.util.json import json_safe
from laminabench.workflows.validate.published import Row
from laminabench.workflows.validate.serving import Errors, Group
from laminabench.workflows.validate.stored import VALIDATION, marked, read_validation

GROUP = Group(
    "h200",
    "all",
    ("0.10",),
    "",
    {"tpot": Errors(3, 4.0, -1.0, 9.0, -1.0, 9.0), "ttft": Errors.of([], "ttft")},
)
ROWS = [Row("llama3-8b", "1xh200", "vllm-0.14", 100.0, 110.0), Row("m", "1xh200", "vllm-0.14", 9, None, "no")]


def keep(folder: Path, document: dict[str, Any]) -> Path:
    (folder / VALIDATION.file).write_text(json.dumps(json_safe(document), allow_nan=False))
    return folder


def test_what_is_kept_is_read(tmp_path: Path) -> None:
    result = {"published": [row.describe() for row in ROWS], "serving": {"groups": [GROUP.describe()]}}
    actual = read_validation(keep(tmp_path, marked(result, "laminabench validate -o x")))
    assert actual.command == "laminabench validate -o x"
    assert [row.error_percent for row in actual.published] == [pytest.approx(10.0), None]
    assert actual.serving is not None
    (group,) = actual.serving.groups
    assert (group.target, group.errors["tpot"].worst, group.errors["ttft"].median) == (12.0, 9.0, None)
    assert (actual.recorded, actual.twin) == ((), ())


def test_one_from_before_there_was_a_mark_is_read_too(tmp_path: Path) -> None:
    result = read_validation(keep(tmp_path, {"published": [ROWS[0].describe()]}))
    assert result.published[0].deployment == "1xh200"


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"mine": 1}, "kept-another"),
        ({"format": "laminabench validation", "format_version": 9}, "kept-format-newer"),
        ({"published": [{"model": "x"}]}, "kept-damaged"),
    ],
)
def test_what_cannot_be_read_says_so(document: dict[str, Any], code: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read_validation(keep(tmp_path, document))
    assert error.value.code == code
