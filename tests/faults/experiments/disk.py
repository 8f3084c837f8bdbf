"""A disk that fails at the n-th operation, or records each: `disk.c`, preloaded before libc."""

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
    """An operation on the disk: create, write, truncate, sync, rename, exchange, mkdir, unlink or mark."""

    what: str
    path: str
    other: str
    number: int  # the offset of a write, or the size after a truncation
    data: bytes


@contextlib.contextmanager
def memory() -> Iterator[Path]:
    """Yield a folder in memory if possible: the experiments test the order of operations, not the disk."""
    where = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=where if where.is_dir() else None, prefix="laminabench-") as folder:
        yield Path(folder)


def in_child(place: str, seeds: Sequence[int]) -> Tally:
    """Run an experiment in a process with the preloaded disk library."""
    with compiled(SOURCE) as library:
        return run_isolated(place, seeds, {"LD_PRELOAD": str(library)})


@contextlib.contextmanager
def compiled(source: Path) -> Iterator[Path]:
    """Yield the path of a library to preload before libc."""
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
    """Add a mark to the recorded operations, if they are recorded."""
    with contextlib.suppress(AttributeError):
        _library().disk_mark(what.encode())


@contextlib.contextmanager
def failing(folder: Path, nth: int, error: int, *, stays: bool) -> Iterator[list[int]]:
    """Make the n-th operation under the folder fail; afterwards the list has the number of failures."""
    failures: list[int] = []
    _library().disk_arm(os.fsencode(folder), nth, error, int(stays), -1)
    try:
        yield failures
    finally:
        failures.append(_library().disk_arm(b"", 0, 0, 0, -1))


@contextlib.contextmanager
def recording(folder: Path) -> Iterator[list[Operation]]:
    """Record all operations under the folder; afterwards the list has them in order."""
    operations: list[Operation] = []
    with tempfile.TemporaryFile() as file:
        _library().disk_arm(os.fsencode(folder), 0, 0, 0, file.fileno())
        try:
            yield operations
        finally:
            _library().disk_arm(b"", 0, 0, 0, -1)
        file.seek(0)
        while line := file.readline():
            what, path, other, number, size = os.fsdecode(line).rstrip("\n").split("\t")
            operations.append(Operation(what, path, other, int(number), file.read(int(size))))
