"""Experiments that need the preloaded disk library; each runs in a process that has it (`disk.in_child`)."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.disk import Operation, failing, memory, recording
from experiments.power import Disk
from experiments.scenarios import (
    HEADER,
    RECORDS,
    SCENES,
    facts,
    files_in,
    journalled,
    write_a_run,
)
from experiments.tally import Tally
from laminabench.runs.journal import Journal, journal_path
from laminabench.runs.read import read_run
from laminabench.util.errors import UserError

# A full disk stays full; a broken one may fail once.
TROUBLES = ((errno.ENOSPC, True), (errno.EIO, False))
_JOURNAL = "journal"
_CASES = list(itertools.product([*SCENES, _JOURNAL], TROUBLES))
Outcome = tuple[str | None, str]


def failing_writes(seeds: Sequence[int]) -> Tally:
    """Fail the n-th operation on the disk, for all n; a case is one scene and one error."""
    tally = Tally("failing-writes")
    for seed in seeds:
        scene, (error, stays) = _CASES[seed % len(_CASES)]
        fails_at = _journal_fails_at if scene == _JOURNAL else functools.partial(_fails_at, scene)
        for nth in itertools.count(1):
            with memory() as folder:
                outcome = fails_at(folder, nth, error, stays)
            if outcome is None:
                break
            kind, what = outcome
            tally.add(kind, f"{scene}, {errno.errorcode[error]}, operation {nth}", seed, what)
    return tally


def _fails_at(name: str, place: Path, nth: int, error: int, stays: bool) -> Outcome | None:
    """Return the outcome; None if there was no n-th operation."""
    scene = SCENES[name]
    scene.begin(place)
    before = files_in(place)
    problem: BaseException | None = None
    with failing(place, nth, error, stays=stays) as failed:
        try:
            scene.act(place)
        except Exception as raised:
            problem = raised
    if not failed[0]:
        return None
    after = files_in(place)
    if problem is not None and (not isinstance(problem, UserError) or "\n" in str(problem)):
        return "crashed", repr(problem)
    if name == "sweep":
        # Complete points stay, and the sweep is resumed.
        scene.act(place)
        left = [path for path in files_in(place) if "partial" in path]
        return "leaked" if left else None, f"{left}"
    if problem is None:
        scene.read(place)
        left = [path for path in after if "partial" in path or ".lock" in path]
        return "leaked" if left else None, f"{left}"
    if after == before:
        with contextlib.suppress(UserError):
            scene.read(place)
        return None, ""
    return _half(set(after) - set(before), lambda: scene.read(place))


def _half(more: set[str], read: Callable[[], object]) -> Outcome:
    """Check a failed action that changed something: what is there must be complete and have its name."""
    left = sorted(path for path in more if "partial" in path or ".lock" in path)
    if left:
        return "leaked", f"{left}"
    try:
        read()
    except Exception as error:
        return "wrong", repr(error)
    return None, ""


def _journal_fails_at(place: Path, nth: int, error: int, stays: bool) -> Outcome | None:
    committed = -1  # the header
    journal, problem = None, None
    with failing(place, nth, error, stays=stays) as failed:
        try:
            journal = Journal.create(journal_path(place / "run"), HEADER)
            committed = 0
            for record in RECORDS:
                journal.append(record)
                journal.flush()
                committed += 1
        except Exception as raised:
            problem = raised
        if journal:
            journal.close()
    if not failed[0]:
        return None
    if problem is not None and not isinstance(problem, UserError):
        return "crashed", repr(problem)
    if committed < 0:
        return "leaked" if files_in(place) else None, f"{sorted(files_in(place))}"
    reopened, records = Journal.reopen(journal_path(place / "run"))
    reopened.close()
    right = records == [HEADER, *RECORDS][: len(records)]
    kind = "wrong" if not right else "lost" if len(records) <= committed else None
    return kind, f"{len(records)} of {committed} records"


def power_cuts(seeds: Sequence[int]) -> Tally:
    """Cut the power while a live replay is journalled and its Run written, at any operation."""
    tally = Tally("power-cuts")
    with memory() as folder:
        recorded = {old: _recorded(folder / f"disk-{old}", old) for old in (False, True)}
        for seed in seeds:
            drawn = random.Random(seed)
            old = drawn.random() < 0.5
            place, (operations, known) = folder / f"disk-{old}", recorded[old]
            # After the journal has begun: before, there is nothing to lose.
            at = drawn.randint(_index(operations, "begun"), len(operations))
            disk = Disk(str(place))
            for operation in operations[:at]:
                disk.do(operation)
            there = folder / "after"
            disk.cut(drawn, there)
            forced = _forced(operations[:at], str(journal_path(place / "run")))
            kind, what = _after(there, known, at > _index(operations, "whole"), forced)
            tally.add(kind, f"power cut at operation {at}{' over a Run' * old}", seed, what)
            shutil.rmtree(there)
    return tally


def _recorded(place: Path, old: bool) -> tuple[list[Operation], list[bytes]]:
    """Return the recorded operations, and the Runs that are ever written, the last one last."""
    place.mkdir()
    known = []
    with recording(place) as operations:
        if old:
            write_a_run(place / "run")
            known.append(facts(read_run(place / "run")))
        journalled(place)
    return operations, [*known, facts(read_run(place / "run"))]


def _index(operations: list[Operation], word: str) -> int:
    return next(at for at, each in enumerate(operations, 1) if (each.what, each.path) == ("mark", word))


def _forced(operations: list[Operation], path: str) -> int:
    """Return how many bytes of the journal were forced to the disk."""
    size = forced = 0
    for what, name, _, at, data in operations:
        if name == path or name.startswith(f"{Path(path).parent}/.{Path(path).name}."):
            size = at + len(data) if what == "write" else size
            forced = size if what == "sync" else forced
    return forced


def _after(there: Path, known: list[bytes], complete: bool, forced: int) -> Outcome:
    """Return what is wrong after the power cut, if anything."""
    run, now = None, known[-1]
    with contextlib.suppress(UserError):
        run = facts(read_run(there / "run"))
    if run is not None and run not in known:
        return "wrong", "another Run than was ever written"
    if (there / "run").exists() and run is None and any((there / "run").iterdir()):
        return "lost", "half a Run has the name of one"
    if complete:
        return (None, "") if run == now else ("lost", "a Run that was whole")
    if run == now:
        return None, ""
    path = journal_path(there / "run")
    if not path.exists():
        return "lost", "the journal, and no Run"
    size = path.stat().st_size
    try:
        journal, records = Journal.reopen(path)
        journal.close()
    except UserError as error:
        return "lost", str(error)
    if records != [HEADER, *RECORDS][: len(records)]:
        return "wrong", "other records than were written"
    size_after = path.stat().st_size
    return (
        (None, "")
        if size_after >= forced
        else ("lost", f"{forced - size_after} of {forced} forced bytes, of {size}")
    )
