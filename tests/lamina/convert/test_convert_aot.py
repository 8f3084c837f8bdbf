"""AOTInductor: compiled slices decode as the model does, and are compiled once.

The compiler takes a minute. In its stead a piece's graph is kept, and run as it is, where no test is `long`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import decodes, seeded, tiny

from lamina.convert import BoundSlice, Conversion, ConversionError, aot, convert

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler"
)


@dataclass(frozen=True)
class _Compiled:
    model: Any
    conversion: Conversion
    bound: list[BoundSlice]
    home: Path

    def files(self) -> list[Path]:
        return sorted((self.home / "slices").iterdir())


def _stored_graph(exported: Any, package_path: str, inductor_configs: object) -> None:
    del inductor_configs
    torch.export.save(exported, package_path)


def _graph_loaded(path: str, device_index: int) -> Any:
    del device_index
    graph = torch.export.load(path).module()
    return SimpleNamespace(loader=SimpleNamespace(boxed_run=lambda tensors: list(graph(*tensors))))


@pytest.fixture(scope="module", params=["graph", pytest.param("library", marks=pytest.mark.long)])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Compiled]:
    """The smallest of models, of three pieces."""
    home = tmp_path_factory.mktemp("home")
    killed = home / "slices" / ".compiling-killed"
    killed.mkdir(parents=True)
    os.utime(killed, (0, 0))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LAMINABENCH_HOME", str(home))
        if request.param == "graph":
            patched.setattr(torch._inductor, "aoti_compile_and_package", _stored_graph)
            patched.setattr(torch._inductor, "aoti_load_package", _graph_loaded)
        model = seeded(tiny("OPT", num_hidden_layers=1, ffn_dim=96))
        conversion = convert(model)
        yield _Compiled(model, conversion, conversion.bind(model, backend="aot"), home)


@needs_compiler
def test_compiled_slices_decode_as_the_model(compiled: _Compiled) -> None:
    # Query, keyvalue and logits; rest has nothing to compute. What a killed compilation left is gone.
    assert [path.suffix for path in compiled.files()] == [".pt2"] * 3
    decodes(compiled.model, compiled.conversion, compiled.bound)


@needs_compiler
def test_compiled_once(compiled: _Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("compiled again")

    aot._load.cache_clear()
    monkeypatch.setattr(aot, "_compile_to", never)
    decodes(compiled.model, compiled.conversion, compiled.conversion.bind(compiled.model, backend="aot"))


@needs_compiler
@pytest.mark.parametrize("broken", [b"garbage", b""])
def test_a_broken_file_is_compiled_once_more(
    broken: bytes, compiled: _Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = compiled.files()[0]
    whole = file.read_bytes()
    written: list[Path] = []

    def compile_to(path: Path, *_: object) -> None:
        assert not path.exists()
        written.append(path)
        path.write_bytes(whole if len(written) == 1 else broken)

    monkeypatch.setattr(aot, "_compile_to", compile_to)
    for expected in (1, 2):
        aot._load.cache_clear()
        file.write_bytes(broken)
        if expected == 1:
            compiled.conversion.bind(compiled.model, backend="aot")
        else:
            with pytest.raises(ConversionError, match=f"(?s){file}.*convert-aot-unloadable"):
                compiled.conversion.bind(compiled.model, backend="aot")
        assert written == [file] * expected
    file.write_bytes(whole)


def test_only_stale_leftovers_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / ".compiling-old", tmp_path / ".compiling-new"
    old.mkdir()
    new.mkdir()
    os.utime(old, (0, 0))
    aot._remove_leftovers(tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


def test_no_compiler_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    model = seeded(tiny("Llama", num_hidden_layers=1))
    with pytest.raises(ConversionError, match="convert-no-compiler"):
        convert(model).bind(model, backend="aot")
    assert not (tmp_path / "slices").exists()


def test_a_device_without_a_number_and_the_first_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    requests: list[int] = []

    def load(_: str, device_index: int) -> Any:
        requests.append(device_index)
        raise RuntimeError("enough")

    monkeypatch.setattr(torch._inductor, "aoti_load_package", load)
    for device in ("cpu", "cuda:0", "cuda:1"):
        with pytest.raises(RuntimeError, match="enough"):
            aot._load(tmp_path / "piece.pt2", device)
    assert requests == [-1, 0, 1]


def test_other_code_arguments_devices_or_compilers_have_other_files(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    keys = {
        aot._key("a", ["float32[B, 4] (4, 1)"], cpu),
        aot._key("b", ["float32[B, 4] (4, 1)"], cpu),
        aot._key("a", ["bfloat16[B, 4] (4, 1)"], cpu),
        aot._key("a", ["float32[B, 4] (1, 4)"], cpu),
    }
    monkeypatch.setattr(aot, "_compiler_version", lambda _: "another")
    keys.add(aot._key("a", ["float32[B, 4] (4, 1)"], cpu))
    assert len(keys) == 5
    assert aot._key("a", [], cpu) == aot._key("a", [], cpu)
