"""The attention kernels for ARM, cross-compiled and emulated: this machine need not be one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


@pytest.mark.long
@pytest.mark.outside
@pytest.mark.skipif(
    not all(map(shutil.which, (CROSS, EMULATOR))), reason="there is no compiler, or no emulator, for aarch64"
)
def test_every_kernel_computes_attention(tmp_path: Path) -> None:
    csrc = ROOT / "csrc"
    sources = [*(csrc / "attention").glob("*.cpp"), *(csrc / "core").glob("slab*.cpp")]
    program = tmp_path / "stress"
    subprocess.run(
        [
            *(CROSS, "-std=c++20", "-O2", "-static", "-ffp-contract=off", "-Wno-psabi", "-o", program),
            *(f"-I{csrc}", f"-I{ROOT / 'tests' / 'csrc'}"),
            *(ROOT / "tests" / "csrc" / "attention_stress.cpp", *sources),
        ],
        check=True,
    )
    for processor, names in (("max", "baseline neon_bf16"), ("cortex-a72", "baseline")):
        done = subprocess.run(
            [EMULATOR, "-cpu", processor, program], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, f"attention_stress: ok with {names}\n"), done.stderr
