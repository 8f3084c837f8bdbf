"""Attention on a GPU beside others: what is judged, and how their libraries are called; none is here."""

from __future__ import annotations

import pytest
import torch

from gpu_window import attention
from gpu_window.attention import Shape


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
