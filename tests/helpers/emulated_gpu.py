"""An emulated GPU: the library's own calls and kernels, run thread by thread on the host.

Drivers, streams and a GPU's own memory are not emulated: work is done when the call returns, by the calling
thread. Threads may call at once, and wait for each other in kernels as streams would.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lamina import cuda_library

ROOT = Path(__file__).parents[2]
_SOURCES = ("csrc", "tests/csrc")
_OPTIONS = ("-std=c++20", "-O2", "-ftls-model=initial-exec", "-shared", "-fPIC", "-fvisibility=hidden")


def built() -> Path:
    """Return the library, built by the first process that needs it and kept until its sources change."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler to build the emulated GPU with")
    folder = ROOT / "build" / "emulated"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_state(compiler)}.so"
    with (folder / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            includes = [f"-I{ROOT / name}" for name in (*_SOURCES, "tests/csrc/fake_cuda")]
            made = folder / "made.so"
            source = ROOT / "tests/csrc/cuda_emulated_library.cpp"
            subprocess.run([compiler, *_OPTIONS, *includes, source, "-o", made], check=True)
            made.rename(path)
    return path


def _state(compiler: str) -> str:
    """Return a hash of all sources and options of the library."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    total = hashlib.sha256(version + " ".join(_OPTIONS).encode())
    for folder in _SOURCES:
        for path in sorted(path for path in (ROOT / folder).rglob("*") if path.is_file()):
            total.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return total.hexdigest()[:16]


@contextmanager
def in_use(library: Path) -> Iterator[None]:
    """Use the library in this process and those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAMINA_CUDA_LIBRARY", str(library))
        cuda_library.library.cache_clear()
        yield
    cuda_library.library.cache_clear()


def take(device: int) -> None:
    """Direct this thread's launches to this emulated device; there are as many as requested."""
    cuda_library.library().lamina_cuda_emulated_take(device)


def synchronize() -> None:
    """Wait for all that runs on this thread's emulated device, as torch does in places."""
    cuda_library.library().lamina_cuda_emulated_synchronize()


def running() -> int:
    """Return how many kernels run on this thread's emulated device."""
    return int(cuda_library.library().lamina_cuda_emulated_running())
