"""The attention benchmark: every case is measured over the bytes it says, and judged by its own median."""

from __future__ import annotations

import json

import numpy as np
import pytest

from laminabench.bench import attention
from laminabench.cli.main import run


@pytest.mark.parametrize("order", attention.ORDERS)
def test_every_order_has_every_slot_once(order: str) -> None:
    case = attention.Case("mha", "bfloat16", 4, order, 1 << 20)
    slots = attention.slots_of(case)
    assert slots.dtype == np.int32
    assert sorted(slots.tolist()) == list(range(case.batch * case.context))
    steps = set(np.diff(slots[: case.context]).tolist())
    assert {"consecutive": steps == {1}, "interleaved": steps == {4}, "random": len(steps) > 2}[order]


def test_it_measures_and_judges_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(["bench", "attention", "--megabytes", "1", "--rounds", "2", "--threads", "2", "--json"])
    assert exit_.value.code == 0
    result = json.loads(capsys.readouterr().out)
    assert result["met"] is None, "a megabyte stays in the cache: nothing is judged"
    assert {(row["kind"], row["dtype"]) for row in result["rows"]} == {
        (kind, dtype) for kind in attention.HEADS for dtype in attention.DTYPES
    }
    for row in result["rows"]:
        element = {"bfloat16": 2, "float16": 2, "float32": 4}[row["dtype"]]
        assert row["kv_bytes"] == 2 * row["batch"] * row["context"] * row["kv_heads"] * 128 * element
        assert row["threads"] == 2
        assert 0 < row["lamina_s"]["min"] <= row["share_of_bandwidth"]["max"] * 1e9
        assert row["met"] is None


def test_the_target_is_for_large_kv_and_real_batches() -> None:
    judged = [case for case in attention.cases(attention.JUDGED_BYTES) if case.judged]
    assert {case.kind for case in judged} == set(attention.HEADS)
    assert {case.order for case in judged} == set(attention.ORDERS)
    assert all(
        case.batch >= 8 and case.batch * case.context * case.shape.token_bytes >= 256 << 20 for case in judged
    )


def test_without_a_gpu_the_gpus_benchmark_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(SystemExit) as exit_:
        run(["bench", "attention", "--device", "cuda"])
    assert exit_.value.code == 2
    assert "this benchmark needs a GPU" in capsys.readouterr().err
