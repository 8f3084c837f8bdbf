"""The documents of sweeps, plans and validations have a checksum; older ones have none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from view_things import keep_plan, keep_sweep, keep_validation

from laminabench.runs.documents import Kind
from laminabench.util.errors import UserError
from laminabench.workflows.plan.stored import PLAN, read_plan
from laminabench.workflows.sweep.read import SWEEP, read_sweep
from laminabench.workflows.validate.stored import VALIDATION, read_validation


@pytest.mark.parametrize(
    ("kind", "keep", "read"),
    [
        (PLAN, keep_plan, read_plan),
        (SWEEP, keep_sweep, read_sweep),
        (VALIDATION, keep_validation, read_validation),
    ],
    ids=["plan", "sweep", "validation"],
)
def test_a_changed_document_is_noticed_and_an_old_one_is_read(
    tmp_path: Path, kind: Kind, keep: Callable[[Path], Any], read: Callable[[Path], Any]
) -> None:
    folder = tmp_path / "kept"
    keep(folder)
    path = folder / kind.file
    read(folder)
    whole = json.loads(path.read_text())
    assert "crc32" in whole
    path.write_text(json.dumps({**whole, "command": "another"}))
    with pytest.raises(UserError, match="kept-damaged"):
        read(folder)
    path.write_text(json.dumps({name: value for name, value in whole.items() if name != "crc32"}))
    read(folder)
