"""Attention on a GPU beside others: what is judged, and how their libraries are called; none is here."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_window import attention, attention_others
from gpu_window.attention import Shape


def test_bytes_and_what_is_judged() -> None:
    shape = Shape("gqa-8", 20, 4096)
    assert shape.kv_bytes == 20 * 4096 * 8 * 128 * 2 * 2  # K and V, two bytes each
    assert shape.judged
    assert not Shape("gqa-8", 19, 4096).judged
    assert not Shape("mha", 20, 4095).judged


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device for torch here")
def test_a_row_has_every_contender_and_a_verdict() -> None:
    result = attention.run(batches=(20,), contexts=(4096,), rounds=3).json()
    for row in result["rows"]:  # type: ignore[attr-defined]
        if "skipped" not in row:
            known = {*row["seconds"], *row["refused"], *result["missing"]}  # type: ignore[misc]
            assert known == set(attention.WAYS)
            fast = row["share"]["lamina"] >= attention.TARGET_SHARE
            assert row["met"] == (fast and row["ratio"]["median"] >= attention.TARGET_RATIO)


@pytest.mark.parametrize(
    ("ours", "other", "met"),
    [(1.0, 1.0, True), (1.12, 1.2, False), (1.05, 1.04, False)],  # as fast; too slow; another is faster
)
def test_attention_is_judged_by_copying_and_by_the_fastest_other(
    ours: float, other: float, met: bool
) -> None:
    shape = Shape("gqa-8", 20, 4096)
    copied = shape.kv_bytes  # a second of it
    seconds = {"lamina": [ours] * 3, "sdpa": [2.0] * 3, "flashinfer": [other] * 3}
    row = attention.measured(shape, seconds, copied, {"flex": "no"})
    assert row.met is met
    assert row.facts["fastest_other"] == "flashinfer"
    assert row.facts["ratio"].median == pytest.approx(other / ours)  # type: ignore[attr-defined]
    small = attention.measured(Shape("mha", 1, 64), {"lamina": [1.0]}, 1.0, {})
    assert (small.met, small.facts["ratio"], small.cells[-1]) == (None, None, "-")


def test_others_are_called_as_their_libraries_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, Any] = {}

    class Wrapper:
        def __init__(self, workspace: Any, layout: str, *, use_tensor_cores: bool) -> None:
            calls["made"] = (workspace.numel(), layout, use_tensor_cores)

        def plan(self, *arguments: Any, **types: Any) -> None:
            calls["types"] = set(types.values())
            calls["plan"] = [each.tolist() if torch.is_tensor(each) else each for each in arguments]

        def run(self, q: Any, kv: Any) -> None:
            calls["run"] = (q.shape, kv[0].shape)

    def attend(q: Any, k: Any, v: Any, *, cache_seqlens: Any, causal: bool) -> None:
        calls["flash"] = (q.shape, k.shape, v.shape, cache_seqlens.tolist(), causal)

    there = {
        "flash_attn": SimpleNamespace(flash_attn_with_kvcache=attend),
        "flashinfer": SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Wrapper),
    }
    monkeypatch.setattr(attention_others, "import_module", there.__getitem__)
    for name in ("randn", "full", "empty", "arange"):
        make = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, make=make, **k: make(*a, **k | {"device": "cpu"}))
    of = attention_others.Tensors(2, 32, 8, 2, 16)
    for name in there:
        attention_others.OTHERS[name.replace("_", "-")](of)()
    assert calls["flash"] == ((2, 1, 8, 16), *[(2, 32, 2, 16)] * 2, [32, 32], True)
    assert calls["types"] == {torch.bfloat16}
    assert calls["made"] == (attention_others.WORKSPACE_BYTES, "NHD", True)
    assert calls["plan"] == [[0, 2, 4], [0, 1, 2, 3], [16, 16], 8, 2, 16, 16]
    assert calls["run"] == ((2, 8, 16), (4, 16, 2, 16))


def test_missing_installations_are_reported() -> None:
    assert attention_others.installed("sdpa")
    assert attention_others.installed("flashinfer") == (importlib.util.find_spec("flashinfer") is not None)
