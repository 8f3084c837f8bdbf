"""The experiments that need a disk which obeys, in the process that has one: `disk.in_child` starts it."""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
import sys
import threading
from pathlib import Path

import msgspec

from laminabench.errors import UserError
from laminabench.runs.journal import Journal, beside
from laminabench.runs.read import read_run
from laminabench.torture.disk import Operation, failing, memory, telling
from laminabench.torture.power import Disk
from laminabench.torture.scenes import (
    HEADER,
    RECORDS,
    SCENES,
    facts,
    files_in,
    journalled,
    write_a_run,
)
from laminabench.torture.tally import Tally

# A full disk stays full; a broken one may fail once.
TROUBLES = ((errno.ENOSPC, True), (errno.EIO, False))
_MOST = 2000
# About so many operations there are in all scenes.
_ALL = 600


def failing_writes(count: int, seed: int) -> Tally:
    """In every scene, the n-th operation on the disk fails: for all n, or for about so many."""
    tally = Tally("failing writes")
    step = max(1, _ALL // count) if count else 1
    tried = range(1 + seed % step, _MOST, step)
    for name in SCENES:
        for error, stays in TROUBLES:
            for nth in tried:
                if not _fails_at(tally, name, nth, error, stays):
                    break
    for error, stays in TROUBLES:
        for nth in tried:
            if not _journal_fails_at(tally, nth, error, stays):
                break
    return tally


def _fails_at(tally: Tally, name: str, nth: int, error: int, stays: bool) -> bool:
    """Whether there was an n-th operation."""
    scene, case = SCENES[name], f"{name}, {errno.errorcode[error]}"
    with memory() as folder:
        place = folder / "here"
        place.mkdir()
        scene.begin(place)
        before = files_in(place)
        problem: BaseException | None = None
        with failing(place, nth, error, stays=stays) as failed:
            try:
                scene.act(place)
            except Exception as raised:
                problem = raised
        if not failed[0]:
            return False
        after = files_in(place)
        if problem is not None and (not isinstance(problem, UserError) or "\n" in str(problem)):
            tally.add("crashed", case, nth, repr(problem))
        elif name == "sweep":
            # Points that are whole stay, and it is gone on with.
            scene.act(place)
            left = [path for path in files_in(place) if "partial" in path]
            tally.add("leaked" if left else None, case, nth, f"{left}")
        elif problem is None or after == before:
            kind = None
            with contextlib.suppress(UserError):
                scene.read(place)
            if problem is None:
                scene.read(place)
                left = [path for path in after if "partial" in path or ".lock" in path]
                kind = "leaked" if left else None
            tally.add(kind, case, nth, f"{sorted(after)}")
        else:
            _half(tally, case, nth, set(after) - set(before), lambda: scene.read(place))
    return True


def _half(tally: Tally, case: str, nth: int, more: set[str], read: object) -> None:
    """It said no and something changed: only that what is there is whole and has its name."""
    left = sorted(path for path in more if "partial" in path or ".lock" in path)
    if left:
        tally.add("leaked", case, nth, f"{left}")
        return
    try:
        assert callable(read)
        read()
        tally.add(None, case, nth)
    except Exception as error:
        tally.add("wrong", case, nth, repr(error))


def _journal_fails_at(tally: Tally, nth: int, error: int, stays: bool) -> bool:
    case = f"journal, {errno.errorcode[error]}"
    with memory() as folder:
        place = folder / "here"
        place.mkdir()
        committed = -1  # the header
        journal, problem = None, None
        with failing(place, nth, error, stays=stays) as failed:
            try:
                journal = Journal.create(beside(place / "run"), HEADER)
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
            return False
        if problem is not None and not isinstance(problem, UserError):
            tally.add("crashed", case, nth, repr(problem))
        elif committed < 0:
            tally.add("leaked" if files_in(place) else None, case, nth, f"{sorted(files_in(place))}")
        else:
            reopened, found = Journal.reopen(beside(place / "run"))
            reopened.close()
            right = found == [HEADER, *RECORDS][: len(found)]
            kind = "wrong" if not right else "lost" if len(found) <= committed else None
            tally.add(kind, case, nth, f"{len(found)} of {committed} records")
    return True


def power_cuts(count: int, seed: int) -> Tally:
    """The power is cut while a live replay is journalled and its Run written, at any operation."""
    tally = Tally("power cuts")
    rng = random.Random(seed)
    with memory() as folder:
        for old in (False, True):
            place = folder / f"disk-{old}"
            place.mkdir()
            with telling(place) as operations:
                if old:
                    write_a_run(place / "run")
                    was = facts(read_run(place / "run"))
                journalled(place)
            now = facts(read_run(place / "run"))
            begun = _index(operations, "begun")
            whole = _index(operations, "whole")
            for _ in range(count // 2):
                number = rng.getrandbits(63)
                drawn = random.Random(number)
                # After what begins the journal: before, there is nothing to lose.
                at = drawn.randint(begun, len(operations))
                disk = Disk(str(place))
                for operation in operations[:at]:
                    disk.do(operation)
                there = folder / "after"
                disk.cut(drawn, there)
                forced = _forced(operations[:at], str(beside(place / "run")))
                kind, what = _after(there, [was, now] if old else [now], at > whole, now, forced)
                tally.add(kind, f"power cut at operation {at}{' over a Run' * old}", number, what)
                shutil.rmtree(there)
    return tally


def _index(operations: list[Operation], word: str) -> int:
    return next(at for at, each in enumerate(operations, 1) if (each.what, each.path) == ("mark", word))


def _forced(operations: list[Operation], path: str) -> int:
    """How many bytes of the journal were forced to the disk."""
    size = forced = 0
    for what, name, _, at, data in operations:
        if name == path or name.startswith(f"{Path(path).parent}/.{Path(path).name}."):
            size = at + len(data) if what == "write" else size
            forced = size if what == "sync" else forced
    return forced


def _after(there: Path, known: list[bytes], whole: bool, now: bytes, forced: int) -> tuple[str | None, str]:
    """What is wrong with what the power cut left."""
    run = None
    with contextlib.suppress(UserError):
        run = facts(read_run(there / "run"))
    if run is not None and run not in known:
        return "wrong", "another Run than was ever written"
    if (there / "run").exists() and run is None and any((there / "run").iterdir()):
        return "lost", "half a Run has the name of one"
    if whole:
        return (None, "") if run == now else ("lost", "a Run that was whole")
    if run == now:
        return None, ""
    path = beside(there / "run")
    if not path.exists():
        return "lost", "the journal, and no Run"
    size = path.stat().st_size
    try:
        journal, found = Journal.reopen(path)
        journal.close()
    except UserError as error:
        return "lost", str(error)
    if found != [HEADER, *RECORDS][: len(found)]:
        return "wrong", "other records than were written"
    kept = path.stat().st_size
    return (None, "") if kept >= forced else ("lost", f"{forced - kept} of {forced} forced bytes, of {size}")


EXPERIMENTS = {each.__name__: each for each in (failing_writes, power_cuts)}


def main() -> None:
    """`python -m laminabench.torture.on_disk EXPERIMENT COUNT SEED`: its tally as JSON."""
    what, count, seed = sys.argv[1:]
    tally = EXPERIMENTS[what](int(count), int(seed))
    assert threading.active_count() == 1
    sys.stdout.buffer.write(msgspec.json.encode(tally))


if __name__ == "__main__":
    main()
