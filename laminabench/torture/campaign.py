"""An experiment chunk by chunk: what each came to is kept on the disk, so that it is gone on with."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from laminabench.torture.experiments import Listed, cases
from laminabench.torture.tally import Failure, Tally
from laminabench.util import version
from laminabench.util.atomic import make_folder
from laminabench.util.errors import UserError

Told = Callable[[int, int | None], None]


class Chunk(msgspec.Struct, frozen=True):
    """Some cases that were tried, one behind the other."""

    first: int
    count: int
    began: str
    wall_s: float
    version: str
    tally: Tally


@dataclass(frozen=True, slots=True)
class Goal:
    """When it is enough: so many cases, or so many seconds in all."""

    cases: int | None
    seconds: float | None = None


class Campaign:
    """One experiment with one seed: its chunks so far, and those to come."""

    def __init__(self, name: str, listed: Listed, seed: int, file: int, chunks: list[Chunk]) -> None:
        self.name, self.listed, self.seed = name, listed, seed
        self.chunks = chunks
        self._file = file

    @property
    def done(self) -> int:
        """Cases."""
        return sum(chunk.count for chunk in self.chunks)

    @property
    def wall_s(self) -> float:
        return sum(chunk.wall_s for chunk in self.chunks)

    def tally(self) -> Tally:
        """Of all chunks."""
        found = Tally(self.name)
        for chunk in self.chunks:
            found.join(chunk.tally)
        return found

    def reached(self, goal: Goal) -> bool:
        if goal.seconds is not None:
            return self.wall_s >= goal.seconds
        return goal.cases is not None and self.done >= goal.cases

    def run(self, goal: Goal, told: Told, failed: Callable[[Failure], None]) -> None:
        """Until the goal is reached. What an interruption cuts off is one chunk."""
        experiment = self.listed.load()
        told(self.done, goal.cases)
        while not self.reached(goal):
            left = self.listed.chunk if goal.cases is None else goal.cases - self.done
            count, first = min(self.listed.chunk, left), self.done
            began, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
            broken = None
            try:
                tally = experiment(cases(self.name, self.seed, first, count))
            except UserError:
                raise
            except Exception as error:
                broken, tally = error, Tally(self.name)
                where = traceback.extract_tb(error.__traceback__)[-1]
                what = f"{error!r} at {Path(where.filename).name}:{where.lineno}"
                seed = cases(self.name, self.seed, first, 1)[0]
                tally.add("crashed", f"the experiment, in one of {count:,} cases from here on", seed, what)
            took_s = time.perf_counter() - clock
            self._keep(Chunk(first, count, began, took_s, version.describe(), tally))
            for failure in tally.failures:
                failed(failure)
            told(self.done, goal.cases)
            if broken:  # the next chunk will hardly do better; whoever mended it goes on behind it
                return

    def _keep(self, chunk: Chunk) -> None:
        os.write(self._file, msgspec.json.encode(chunk) + b"\n")
        os.fsync(self._file)
        self.chunks.append(chunk)


@contextlib.contextmanager
def opened(folder: Path, name: str, listed: Listed, seed: int) -> Iterator[Campaign]:
    """What there is of it in the folder, for nobody else at the same time."""
    path = folder / f"{name}-{seed}.jsonl"
    make_folder(folder)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError("torture-in-use", f"{path} is being written: it runs already") from None
        chunks, whole = _read(path)
        os.ftruncate(file, whole)  # of a last line that is not whole
        yield Campaign(name, listed, seed, file, chunks)
    finally:
        os.close(file)


def _read(path: Path) -> tuple[list[Chunk], int]:
    chunks, whole = list[Chunk](), 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                raise msgspec.DecodeError("cut off")
            chunk = msgspec.json.decode(line, type=Chunk)
        except msgspec.DecodeError as error:
            if number == len(lines):
                break
            raise UserError(
                "torture-state",
                f"line {number} of {path} is damaged ({error}): remove the file and begin again",
            ) from error
        if chunk.first != sum(each.count for each in chunks):
            raise UserError("torture-state", f"line {number} of {path} is not the next: remove the file")
        chunks.append(chunk)
        whole += len(line)
    return chunks, whole


def once(name: str, listed: Listed, case: int) -> Tally:
    """One case by its seed; nothing is kept."""
    tally: Any = listed.load()([case])
    assert isinstance(tally, Tally), name
    return tally
