"""A GPU where there is none: the library's own calls and kernels, run thread by thread on the host.

What a driver, a stream and a GPU's own memory do is not in it: work is done when the call returns, by the
thread that calls. Threads may call at once, and wait for each other in kernels as streams would.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lamina import cuda_library

ROOT = Path(__file__).parents[2]


def built(folder: Path) -> Path:
    """The library, built by the first process that comes."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler to build the emulated GPU with")
    path = folder / "liblamina_cuda_emulated.so"
    with (folder / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            sources = [f"-I{ROOT / name}" for name in ("csrc", "tests/csrc", "tests/csrc/fake_cuda")]
            options = [
                "-std=c++20",
                "-O2",
                "-ftls-model=initial-exec",
                "-shared",
                "-fPIC",
                "-fvisibility=hidden",
                *sources,
            ]
            made = folder / "made.so"
            source = ROOT / "tests/csrc/cuda_emulated_library.cpp"
            subprocess.run([compiler, *options, source, "-o", made], check=True)
            made.rename(path)
    return path


@contextmanager
def in_use(library: Path) -> Iterator[None]:
    """By this process and those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAMINA_CUDA_LIBRARY", str(library))
        cuda_library.library.cache_clear()
        yield
    cuda_library.library.cache_clear()


def take(device: int) -> None:
    """What this thread launches goes to this emulated device; there are as many as one asks for."""
    cuda_library.library().lamina_cuda_emulated_take(device)
