"""A disk that fails at the n-th operation, or tells of each: `disk.c` before libc, and its two ends."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from experiments.isolated import run as run_isolated
from experiments.tally import Tally

SOURCE = Path(__file__).with_name("disk.c")


class Operation(NamedTuple):
    """What was done to the disk: create, write, truncate, sync, rename, exchange, mkdir, unlink or mark."""

    what: str
    path: str
    other: str
    number: int  # where it was written, or to what size it was cut
    data: bytes


@contextlib.contextmanager
def memory() -> Iterator[Path]:
    """A folder in memory, where there is one: what is tried is the order of what is done, not the disk."""
    where = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=where if where.is_dir() else None, prefix="laminabench-") as folder:
        yield Path(folder)


def in_child(place: str, seeds: Sequence[int]) -> Tally:
    """What an experiment comes to in a process whose disk obeys."""
    with compiled(SOURCE) as library:
        return run_isolated(place, seeds, {"LD_PRELOAD": str(library)})


@contextlib.contextmanager
def compiled(source: Path) -> Iterator[Path]:
    """A library to put before libc."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip(f"{source.name} needs a C compiler")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, f"{source.stem}.so")
        subprocess.run(
            [compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"], check=True
        )
        yield library


@functools.cache
def _library() -> Any:
    return ctypes.CDLL(None)


def mark(what: str) -> None:
    """A word among the operations; nothing where nobody listens."""
    with contextlib.suppress(AttributeError):
        _library().disk_mark(what.encode())


@contextlib.contextmanager
def failing(folder: Path, nth: int, error: int, *, stays: bool) -> Iterator[list[int]]:
    """The n-th operation under the folder fails; afterwards the list has how many did."""
    found: list[int] = []
    _library().disk_arm(os.fsencode(folder), nth, error, int(stays), -1)
    try:
        yield found
    finally:
        found.append(_library().disk_arm(b"", 0, 0, 0, -1))


@contextlib.contextmanager
def telling(folder: Path) -> Iterator[list[Operation]]:
    """Afterwards the list has all that was done under the folder, in order."""
    found: list[Operation] = []
    with tempfile.TemporaryFile() as file:
        _library().disk_arm(os.fsencode(folder), 0, 0, 0, file.fileno())
        try:
            yield found
        finally:
            _library().disk_arm(b"", 0, 0, 0, -1)
        file.seek(0)
        while line := file.readline():
            what, path, other, number, size = os.fsdecode(line).rstrip("\n").split("\t")
            found.append(Operation(what, path, other, int(number), file.read(int(size))))
