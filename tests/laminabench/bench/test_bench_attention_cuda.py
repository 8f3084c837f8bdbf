"""The GPU benchmark says what it needs, knows what it judges, and measures where it can."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from laminabench.bench import attention_cuda
from laminabench.bench.attention_cuda import Shape


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so(shell: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = shell("attention", "--device", "cuda", "-v")
    assert code == 2
    assert "[bench-no-gpu]" in err


def test_bytes_and_what_is_judged() -> None:
    shape = Shape("gqa-8", 20, 4096)
    assert shape.kv_bytes == 20 * 4096 * 8 * 128 * 2 * 2  # K and V, two bytes each
    assert shape.judged
    assert not Shape("gqa-8", 19, 4096).judged
    assert not Shape("mha", 20, 4095).judged


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device for torch here")
def test_a_row_has_every_contender_and_a_verdict() -> None:
    result = attention_cuda.run(batches=(20,), contexts=(4096,), rounds=3)
    for row in result.json()["rows"]:  # type: ignore[attr-defined]
        if "skipped" not in row:
            assert {"lamina", *row["seconds"], *row["refused"]} == {"lamina", "sdpa", "flex"}
            assert row["met"] == (row["share"]["lamina"] >= attention_cuda.TARGET_SHARE)
