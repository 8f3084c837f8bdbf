"""What becomes of a user's choices for live vLLM before anything starts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.sim.simulate import Offered
from laminabench.systems.live.prompts import prompt_of, prompts_of
from laminabench.systems.live.vllm.setup import VllmSetup, check, order, write_prompts
from laminabench.util.errors import UserError

ONE_KV_HEAD = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "torch_dtype": "bfloat16",
}


def setup(folder: Path, workers: int) -> VllmSetup:
    source = folder / "config.json"
    source.write_text(json.dumps(ONE_KV_HEAD))
    return VllmSetup(
        model=model(str(source)),
        source=str(source),
        deployment=parse_deployment(f"{workers}xcpu"),
        tensor_parallel=workers,
    )


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_worker_gets_room_for_all_the_tokens_though_they_share_a_head(
    workers: int, tmp_path: Path, trace_of: Any
) -> None:
    ordered = order(setup(tmp_path, workers), trace_of([10], [5]), Offered(mode="saturate"), 256, tmp_path)
    head = 2 * 2 * 32 * 2  # K and V of two layers, 32 numbers of two bytes
    assert ordered["kv_bytes"] / workers == (256 + 128) * head


def test_a_model_that_cannot_be_split_so_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    with pytest.raises(UserError, match="deployment-tensor-parallel"):
        check(setup(tmp_path, 3))


def test_the_prompts_are_those_of_the_reference_engine(tmp_path: Path, trace_of: Any) -> None:
    trace = trace_of([3, 1, 4], [5, 5, 5])
    written = np.fromfile(write_prompts(prompts_of(trace, 7, 256), tmp_path / "prompts"), np.uint32)
    assert written.tolist() == [token for row in range(3) for token in prompt_of(trace, 7, 256, row)]


def test_a_batch_of_fewer_tokens_than_requests_is_refused(tmp_path: Path) -> None:
    whole = replace(setup(tmp_path, 1), prefill="model", max_batched_tokens=255)
    with pytest.raises(UserError, match="replay-prompt-budget"):
        check(whole)
    check(replace(whole, max_num_seqs=255))
