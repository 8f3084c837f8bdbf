"""The spin time of torch's threads is set by what loads libgomp: libgomp itself prints what it has read."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
_LOADS = (
    "import ctypes, importlib.util, pathlib; "
    "root = pathlib.Path(importlib.util.find_spec('torch').origin).parents[1]; "
    "ctypes.CDLL(str(next(root.glob('torch*/**/libgomp*.so*'))))"
)
_REPORT = "import os, lamina.threads as t; print(t.spins, os.environ.get('GOMP_SPINCOUNT'))"


def reported_by(program: str, **environment: str) -> tuple[str, str]:
    """What a program prints, and the spin count that libgomp went by."""
    saved = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=saved | {"OMP_DISPLAY_ENV": "verbose"} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    counts = [line.split("'")[1] for line in ran.stderr.splitlines() if "GOMP_SPINCOUNT = " in line]
    if not counts:
        pytest.skip("this torch has no libgomp of its own")
    # Once: torch takes the one that is there.
    assert len(counts) == 1
    return ran.stdout.strip(), counts[0]


def test_importing_lamina_sets_it_and_leaves_the_environment_alone() -> None:
    assert reported_by(_REPORT) == ("2000 None", "2000")


@pytest.mark.parametrize(
    ("name", "value", "message", "count"),
    [("GOMP_SPINCOUNT", "77", "77 77", "77"), ("OMP_WAIT_POLICY", "PASSIVE", "None None", "0")],
)
def test_user_settings_are_not_overridden(name: str, value: str, message: str, count: str) -> None:
    assert reported_by(f"{_REPORT}; {_LOADS}", **{name: value}) == (message, count)


def test_torch_takes_it_over() -> None:
    program = (
        f"{_REPORT}; import torch; torch.ones(1 << 20).sum(); "
        "print(len({line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line}))"
    )
    assert reported_by(program) == ("2000 None\n1", "2000")


def test_importing_torch_first_is_reported_once() -> None:
    program = (
        f"{_LOADS}; import logging, sys, lamina.threads as t; "
        "logging.basicConfig(stream=sys.stdout, format='%(name)s'); "
        "t.warn_if_late(); t.warn_if_late(); print(t.spins)"
    )
    message, count = reported_by(program)
    assert message.split() == ["lamina", "None"]
    assert count != "2000"
