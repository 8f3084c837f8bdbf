"""libibverbs and libmlx5 are loaded at run time: what we declare of them is what their headers say."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.outside

TESTS = Path(__file__).resolve().parents[2]
HEADERS = Path("/usr/include/infiniband")


@pytest.mark.parametrize(("layout", "header"), [("ibverbs", "verbs.h"), ("mlx5dv", "mlx5dv.h")])
def test_our_structures_are_those_of_the_headers(layout: str, header: str) -> None:
    if not (HEADERS / header).exists():
        pytest.skip(f"{HEADERS / header} is not installed: it comes with libibverbs-dev")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None
    include = TESTS.parent / "csrc"
    source = TESTS / "csrc" / f"{layout}_layout.cpp"
    subprocess.run(
        [*compiler.split(), "-std=c++20", "-w", "-fsyntax-only", f"-I{include}", str(source)], check=True
    )
