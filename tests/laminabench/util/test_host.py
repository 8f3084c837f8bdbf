"""Processes in /proc, and the name of the processor."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from laminabench.util import host


def test_a_process_and_its_parent() -> None:
    # A name with what separates fields in it.
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b'a) S 1 (b', 0, 0, 0); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert process.pid in host.pids()
        assert b"a) S 1 (b" in host.read(process.pid, "stat")
        assert host.stat(process.pid)[1] == str(os.getpid())
        process.communicate(b"\n", timeout=60)
    assert host.stat(process.pid) == []
    assert host.used_s(process.pid) == 0


def test_a_processor_is_used() -> None:
    began = host.used_s(os.getpid())
    while host.used_s(os.getpid()) <= began:
        sum(range(100_000))


@pytest.mark.skipif(
    "model name" not in Path("/proc/cpuinfo").read_text(), reason="the kernel does not name processors here"
)
def test_processor_has_its_name_and_design() -> None:
    assert re.fullmatch(r".+ \(family \d+, model \d+\)", host.processor())
