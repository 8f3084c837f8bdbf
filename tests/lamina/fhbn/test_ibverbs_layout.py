"""libibverbs and libmlx5 are loaded at run time: what we declare of them is what their headers say."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.outside

TESTS = Path(__file__).resolve().parents[2]
HEADER = Path("/usr/include/infiniband/mlx5dv.h")


@pytest.mark.skipif(not HEADER.exists(), reason=f"{HEADER} is not installed: it comes with libibverbs-dev")
def test_our_structures_are_those_of_the_headers() -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None
    options = ["-std=c++20", "-w", "-fsyntax-only", f"-I{TESTS.parent / 'csrc'}"]
    subprocess.run([*compiler.split(), *options, str(TESTS / "csrc/ibverbs_layout.cpp")], check=True)
