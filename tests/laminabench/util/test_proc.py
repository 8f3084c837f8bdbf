"""Processes as /proc has them."""

from __future__ import annotations

import os
import subprocess
import sys

from laminabench.util import proc


def test_a_process_and_who_began_it() -> None:
    # A name with what separates fields in it.
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b'a) S 1 (b', 0, 0, 0); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert process.pid in proc.pids()
        assert b"a) S 1 (b" in proc.read(process.pid, "stat")
        assert proc.stat(process.pid)[1] == str(os.getpid())
        process.communicate(b"\n", timeout=60)
    assert proc.stat(process.pid) == []
    assert proc.used_s(process.pid) == 0


def test_a_processor_is_used() -> None:
    began = proc.used_s(os.getpid())
    while proc.used_s(os.getpid()) <= began:
        sum(range(100_000))
