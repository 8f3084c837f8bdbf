"""AOTInductor: a compiled slice computes the same, and is compiled once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.convert import ConversionError, aot, convert
from lamina.convert.aot import bind_aot

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler"
)


@needs_compiler
def test_compiled_once_and_equal(
    tiny: Callable[..., Any], seeded: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path))
    model = seeded(tiny("OPT", num_hidden_layers=1, ffn_dim=96))
    conversion = convert(model)
    eager = conversion.bind(model)[0]
    kind, cpu = conversion.classes[0], torch.device("cpu")
    compiled = bind_aot(kind, 0, eager.weights, cpu)
    assert len(list((tmp_path / "slices").iterdir())) == 2  # query and keyvalue; rest has nothing to compute
    for batch in (1, 3, 8):
        context = (torch.arange(batch), torch.arange(batch) + 4)
        for one in (compiled, eager):
            q, state = one.query(context, None)
            k, v, state = one.keyvalue(state)
            (residual,) = one.rest(state)
            if one is compiled:
                expected = (q, k, v, residual)
        torch.testing.assert_close((q, k, v, residual), expected)

    def never(*_: object) -> None:
        raise AssertionError("compiled again")

    aot._load.cache_clear()
    monkeypatch.setattr(aot, "_compile_to", never)
    again = bind_aot(kind, 0, eager.weights, cpu)
    torch.testing.assert_close(again.query(context, None)[0], q)


def test_no_compiler_is_a_sentence(
    tiny: Callable[..., Any], seeded: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    model = seeded(tiny("Llama", num_hidden_layers=1))
    with pytest.raises(ConversionError, match="needs a C\\+\\+ compiler and there is no no-such-compiler"):
        convert(model).bind(model, backend="aot")
    assert not (tmp_path / "slices").exists()


def test_other_code_arguments_or_devices_have_other_files() -> None:
    cpu = torch.device("cpu")
    keys = {
        aot._key("a", ["float32[B, 4] (4, 1)"], cpu),
        aot._key("b", ["float32[B, 4] (4, 1)"], cpu),
        aot._key("a", ["bfloat16[B, 4] (4, 1)"], cpu),
        aot._key("a", ["float32[B, 4] (1, 4)"], cpu),
    }
    assert len(keys) == 4
    assert aot._key("a", [], cpu) == aot._key("a", [], cpu)
