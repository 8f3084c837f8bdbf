"""Checks of what a power cut left; a virtual machine itself is started where there can be one."""

from __future__ import annotations

import os
import shutil

import pytest

from experiments.machine_cuts import machine_cuts


@pytest.mark.long
@pytest.mark.outside
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("qemu-system-x86_64"), reason="needs root and QEMU")
def test_in_short() -> None:
    tally = machine_cuts(range(1))
    assert not tally.failures
    assert tally.survived == 1
