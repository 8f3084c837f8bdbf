"""Iterations that are captured once for each size of batch, where a capture is a function called again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import seeded, tiny
from torch import Tensor

from lamina.attention.cpu import TensorWorker
from lamina.attention.heads import AttentionLayer
from lamina.convert import ConversionError
from lamina.convert.graphs import SIZES, Replay, captured, size_for
from lamina.kv import Slab
from lamina.serve import Engine, Sampling

FAMILIES = ["Llama", "Gemma2", "DeepseekV3", "GptOss"]


@pytest.fixture
def rows_captured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each graph that is captured."""
    rows: list[int] = []

    def counted(run: Callable[[], Tensor], device: torch.device) -> tuple[Replay, Tensor]:
        replay, result = captured(run, device)
        rows.append(len(result))
        return replay, result

    monkeypatch.setattr("lamina.serve.graphs.captured", counted)
    return rows


def _tokens(engine: Engine) -> list[Any]:
    """Of requests that come and go, so that batches have many sizes."""
    wishes = [
        (list(range(2 + number, 9 + 3 * number)), Sampling(max_tokens=3 + 5 * number, temperature=t, seed=9))
        for number, t in enumerate([0.0, 0.8, 0.0, 1.1, 0.0, 0.0])
    ]
    numbers = [engine.submit(prompt, sampling) for prompt, sampling in wishes[:2]]
    engine.step()
    numbers += [engine.submit(prompt, sampling) for prompt, sampling in wishes[2:]]
    numbers.append(engine.submit([5, 6, 7], Sampling(max_tokens=8, beams=3)))
    engine.run()
    engine.check_integrity()
    return [[one.tokens for one in engine.result(number).completions] for number in numbers]


@pytest.mark.usefixtures("emulated")
@pytest.mark.long(but=["cpu-Llama", "cuda-Llama"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tokens_are_those_without_graphs(device: str, family: str, rows_captured: list[int]) -> None:
    """What is emulated captures nothing: each replay does it again."""
    model = seeded(tiny(family))
    plain = _tokens(Engine(model, kv_tokens=600))
    engine = Engine(model, kv_tokens=600, device=device, backend="cudagraph")
    assert _tokens(engine) == plain
    assert len(set(rows_captured)) == len(rows_captured) > 1, "each size is captured once"
    assert set(rows_captured) <= set(SIZES)


def test_a_batch_is_filled_up_with_rows_that_leave_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    k, v = (torch.zeros(40, 2, 16) for _ in range(2))
    worker = TensorWorker(torch.float32, 4, 2, 16)
    layer = worker.add_layer(AttentionLayer(k, v, 0.25))
    slab = Slab(40)
    for name, count in ((1, 5), (2, 9), (3, 1)):
        slab.allocate(name, count)
    names = np.array([1, 2, 3])
    q, new_k, new_v = (torch.randn(8, heads, 16, generator=generator) for heads in (4, 2, 2))
    worker.plan(slab, names)
    expected = worker.run(layer, q[:3], new_k[:3], new_v[:3])
    stored = k.clone(), v.clone()
    worker.plan(slab, names, 8)
    filled = worker.run(layer, q, new_k, new_v)
    assert filled.shape == (8, 4, 16)
    assert torch.equal(filled[:3], expected)
    assert not filled[3:].any()
    assert torch.equal(k, stored[0])
    assert torch.equal(v, stored[1])


def test_more_than_graphs_are_captured_for_is_refused() -> None:
    with pytest.raises(ConversionError, match="convert-graph-batch"):
        size_for(SIZES[-1] + 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device for torch here")
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_gpu_tokens_are_those_without_graphs(family: str) -> None:
    model = seeded(tiny(family)).to("cuda")
    plain = _tokens(Engine(model, kv_tokens=600, device="cuda"))
    assert _tokens(Engine(model, kv_tokens=600, device="cuda", backend="cudagraph")) == plain


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_there_are_none() -> None:
    with pytest.raises(ConversionError, match="convert-no-gpu"):
        Engine(seeded(tiny("Llama")), kv_tokens=100, backend="cudagraph")
