"""Tests that need an RDMA device: collected inside the virtual machines of `make rdma-test` only.

one/ runs in a machine by itself, two/ in one of two that a cable joins.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

collect_ignore_glob = [] if os.environ.get("LAMINABENCH_RDMA_VM") else ["*"]

START_S = 60.0  # of a program, in an emulated machine
LISTENS = "0A"  # as /proc/net/tcp says it


@pytest.fixture(scope="session")
def device() -> str:
    """The name of the RDMA device."""
    return "rxe0"


@pytest.fixture(scope="session")
def near() -> str:
    """The address of this machine's device."""
    return os.environ["LAMINABENCH_RDMA_NEAR"]


@pytest.fixture
def serve() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a program and wait until it listens on a port; killed and reaped at the end."""
    with ExitStack() as started:

        def start(port: int, *argv: str) -> subprocess.Popen[str]:
            program = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            started.callback(program.communicate)
            started.callback(program.kill)
            until = time.monotonic() + START_S
            while not listens(port):
                assert program.poll() is None, program.communicate()[0]
                assert time.monotonic() < until, f"{argv[0]} does not listen on port {port}"
                time.sleep(0.05)
            return program

        yield start


def listens(port: int) -> bool:
    """Looked up: a program that takes one connection would take a try of ours for it."""
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    return any(int(row[1].rpartition(":")[2], 16) == port and row[3] == LISTENS for row in rows)
