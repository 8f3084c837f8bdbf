"""Checks of what a power cut left; a virtual machine itself is started where there can be one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from experiments.machine_cuts import _left, _Report, machine_cuts
from experiments.scenarios import facts, write_a_run
from experiments.vm_writer import HEADER, record
from laminabench.runs.journal import Journal, journal_path
from laminabench.runs.read import read_run


def test_what_is_left_is_looked_through(tmp_path: Path) -> None:
    begun, complete = _Report(0.0, "begun", 0, -1), _Report(2.0, "whole", 0, -1)
    flushed = [_Report(number / 10, "flushed", 0, number) for number in range(10)]
    assert _left(tmp_path, [begun], 20.0, b"")[0] == "lost"
    journal = Journal.create(journal_path(tmp_path / "run-0"), HEADER)
    for number in range(9):
        journal.append(record(number))
    journal.close()
    assert _left(tmp_path, [begun], 20.0, b"")[0] is None
    assert _left(tmp_path, [begun, *flushed[:9]], 20.0, b"")[0] is None
    assert _left(tmp_path, [begun, *flushed], 20.0, b"") == ("lost", "1 records of run-0 that were forced")
    assert _left(tmp_path, [begun, *flushed], 4.0, b"")[0] is None, "it may not be forced yet"
    assert _left(tmp_path, [begun, *flushed, complete], 4.0, b"")[0] == "lost"
    write_a_run(tmp_path / "run-0")
    was = facts(read_run(tmp_path / "run-0"))
    assert _left(tmp_path, [begun, *flushed, complete], 20.0, was)[0] is None
    assert _left(tmp_path, [begun, *flushed, complete], 20.0, b"another")[0] == "wrong"
    (tmp_path / "run-0" / "run.json").unlink()
    assert _left(tmp_path, [begun], 20.0, was)[0] == "lost"


@pytest.mark.long
@pytest.mark.outside
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("qemu-system-x86_64"), reason="needs root and QEMU")
def test_in_short() -> None:
    tally = machine_cuts(range(1))
    assert not tally.failures
    assert tally.survived == 1
