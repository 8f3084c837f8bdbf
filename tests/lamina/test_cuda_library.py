"""The native CUDA library and the managed memory it gives: what is wrong with them is one sentence."""

from __future__ import annotations

import gc
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina import cuda_library
from lamina.cuda_library import CudaError
from lamina.kv.arena import _Managed


def test_managed_memory_that_was_not_given_is_not_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def refuse(name: str, *_: object) -> None:
        called.append(name)
        raise CudaError("cuda-failed", "out of memory")

    monkeypatch.setattr(cuda_library, "call", refuse)
    unraised: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", unraised.append)
    with pytest.raises(CudaError, match="cuda-failed"):
        _Managed(100)
    gc.collect()
    assert called == ["allocate_managed"]
    assert not unraised


@pytest.fixture
def fresh_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    cuda_library.library.cache_clear()
    yield monkeypatch
    cuda_library.library.cache_clear()


def test_an_invalid_library_is_one_sentence(fresh_library: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = tmp_path / "lib.so"
    text.write_text("not a library")
    for path in (text, tmp_path, Path("/" + "x" * 5000)):
        fresh_library.setenv("LAMINA_CUDA_LIBRARY", str(path))
        with pytest.raises(CudaError, match="cuda-no-library"):
            cuda_library.library()


def test_a_foreign_library_is_detected_by_missing_symbols(
    fresh_library: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a library with")
    source = tmp_path / "other.c"
    source.write_text("const char* lamina_cuda_message(void) { return 0; }")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "other.so", source], check=True)
    # By its bare name too, which the loader would look for elsewhere.
    fresh_library.chdir(tmp_path)
    fresh_library.setenv("LAMINA_CUDA_LIBRARY", "other.so")
    with pytest.raises(CudaError, match="cuda-no-library"):
        cuda_library.library()
