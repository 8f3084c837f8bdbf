"""A virtual machine whose power is cut while journals and Runs are written on its disk.

QEMU is killed: what the machine had not written to its disk is lost. The file system is then mounted here, as
after a start, and checked. (`power-cuts` tests what a disk's own cache loses.)
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from experiments.scenarios import facts, write_a_run
from experiments.tally import Tally
from experiments.vm_writer import HEADER, RECORDS, record
from laminabench.runs.journal import SYNC_EVERY_S, Journal, journal_path
from laminabench.runs.read import read_run
from laminabench.util.errors import UserError

_TREE = Path(__file__).parents[3] / "ci" / "rdma-vm"
_DISK_BYTES = 64 << 20
_START_S, _LONGEST_S = 180.0, 8.0
# A record that was reported this long before the cut is on the disk, even on an emulated machine.
_FORCED_S = SYNC_EVERY_S + 3.0
_COMMAND = "mount -t ext4 /dev/vda /mnt && exec python3 -m experiments.vm_writer /mnt /run-files"


class _Report(NamedTuple):
    at_s: float
    what: str
    turn: int
    number: int


def machine_cuts(seeds: Sequence[int]) -> Tally:
    """Start machines and cut their power some seconds after they began to write; a case is a machine."""
    tally = Tally("machine-cuts")
    with tempfile.TemporaryDirectory(prefix="vm-") as place:
        folder = Path(place)
        write_a_run(folder / "run")
        was = facts(read_run(folder / "run"))
        archive = _packed(folder)
        for number, seed in enumerate(seeds):
            here = folder / str(number)
            here.mkdir()
            disk = here / "disk"
            reports, cut_s = _cut(disk, archive, here, random.Random(seed))
            with _mounted(disk, here / "after") as after:
                kind, what = _left(after, reports, cut_s, was)
            tally.add(kind, f"cut after {len(reports)} steps", seed, what)
            tally.facts["runs"] = tally.facts.get("runs", 0) + sum(each.what == "whole" for each in reports)
    return tally


@functools.cache
def _ci() -> tuple[Any, Any, Any, Any]:
    """Return the modules with which CI starts its machines."""
    if str(_TREE) not in sys.path:
        sys.path.append(str(_TREE))
    archive, image, machine, project = map(
        importlib.import_module, ("archive", "image", "machine", "project")
    )
    return archive, image, machine, project


def _packed(folder: Path) -> Path:
    archive, _, _, project = _ci()
    packed = folder / "project.cpio"
    project.pack(packed)
    with packed.open("ab") as out:
        made = archive.Archive(out)
        for path in sorted((folder / "run").iterdir()):
            made.add(path, f"run-files/{path.name}")
        made.end()
    return packed


def _cut(disk: Path, archive: Path, here: Path, drawn: random.Random) -> tuple[list[_Report], float]:
    """Return what was reported until the power cut, and the time of that."""
    _, image, machine, project = _ci()
    with disk.open("wb") as file:
        file.truncate(_DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", disk], check=True)
    try:
        booted = image.image()
    except image.UnavailableError as error:
        pytest.skip(str(error))
    job = machine.Job(
        "cut",
        "10.77.0.1",
        _COMMAND,
        600,
        {"PYTHONPATH": f"{project.PYTHONPATH}:/project/tests/faults"},
        disk=str(disk),
    )
    reports: list[_Report] = []
    lasts_s = drawn.uniform(0, _LONGEST_S)
    with (here / "said").open("w+b") as output, (here / "said").open() as lines:
        with machine.Machine(booted, archive, job, here / "machine", output) as running:
            end_s = time.monotonic() + _START_S
            while time.monotonic() < end_s:
                if not running.running():
                    raise RuntimeError(
                        f"the machine ended: {(here / 'said').read_text()} {running.last_words()}"
                    )
                for line in _complete_lines(lines):
                    what, turn, *number = line.split()
                    reports.append(
                        _Report(time.monotonic(), what, int(turn), int(number[0]) if number else -1)
                    )
                    if len(reports) == 1:
                        end_s = time.monotonic() + lasts_s
                time.sleep(0.005)
            cut_s = time.monotonic()
        if not reports:
            raise RuntimeError(f"the machine has not begun in {_START_S:g} s: {running.last_words()}")
    return reports, cut_s


def _complete_lines(file: Any) -> Iterator[str]:
    while True:
        at = file.tell()
        line = file.readline()
        if not line.endswith("\n"):
            file.seek(at)
            return
        yield line


@contextlib.contextmanager
def _mounted(disk: Path, at: Path) -> Iterator[Path]:
    at.mkdir()
    subprocess.run(["mount", "-o", "loop", disk, at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def _left(after: Path, reports: list[_Report], cut_s: float, was: bytes) -> tuple[str | None, str]:
    """Return what is wrong after the power cut, if anything."""
    for turn in sorted({each.turn for each in reports}):
        run = after / f"run-{turn}"
        if run.exists():
            try:
                read = facts(read_run(run))
            except UserError as error:
                return "lost", f"half a Run has the name of one: {error}"
            if read != was:
                return "wrong", "another Run than was ever written"
            continue
        if any((each.what, each.turn) == ("whole", turn) for each in reports):
            return "lost", f"run-{turn}, which was whole"
        if not journal_path(run).exists():
            return "lost", f"the journal of run-{turn}, and no Run"
        try:
            journal, records = Journal.reopen(journal_path(run))
        except UserError as error:
            return "lost", str(error)
        journal.close()
        if records != [HEADER, *map(record, range(RECORDS))][: len(records)]:
            return "wrong", "other records than were written"
        forced = max(
            (each.number + 2 for each in reports if each.turn == turn and each.at_s < cut_s - _FORCED_S),
            default=1,
        )
        if len(records) < forced:
            return "lost", f"{forced - len(records)} records of run-{turn} that were forced"
    return None, ""
