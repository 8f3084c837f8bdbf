"""Recordings that were made up, and what they were made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laminabench.workflows.validate.recording import Recording

Make = Callable[..., Recording]
ABOUT = {
    "model": "llama3.1-8b",
    "deployment": "1xrtx-4090",
    "costs": "vllm-0.19",
    "max_num_seqs": 32,
    "max_batched_tokens": 1024,
    "kv_tokens": 40_000,
    "host_async": True,
    "prefix_caching": True,
    "source": "made up",
}


@pytest.fixture
def made() -> Make:
    """Forty requests in four seconds; answered after a second, a token every 20 ms."""

    def make(name: str = "made", **changed: Any) -> Recording:
        random = np.random.default_rng(7)
        arrival = np.round(np.cumsum(random.exponential(0.1, 40)), 6)
        arrival -= arrival[0]
        output = random.integers(2, 80, 40).astype(np.int32)
        columns: dict[str, Any] = {
            "arrival_s": arrival,
            "prompt_tokens": random.integers(20, 600, 40).astype(np.int32),
            "output_tokens": output,
            "first_token_s": arrival + 1,
            "last_token_s": np.round(arrival + 1 + 0.02 * (output - 1), 6),
            "like": np.full(40, -1, np.int32),
            "blocks": np.zeros(40, np.int32),
        }
        about = {**ABOUT, **changed.pop("about", {})}
        return Recording(name, about, **(columns | changed))

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As LLMServingSim's benchmark leaves one: three requests, the last of which begins as the first does."""
    result = tmp_path / "bench"
    result.mkdir()
    engine = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    meta = {
        "vllm_version": "0.19.0",
        "engine_kwargs": engine,
        "kv_cache": {"num_gpu_blocks": 101, "block_size": 16},
    }
    (result / "meta.json").write_text(json.dumps(meta))
    prompts = [list(range(50)), list(range(1000, 1040)), [*range(33), 7, 7, 7]]
    rows = [
        {
            "input_toks": len(tokens),
            "output_toks": 3 + row,
            "arrival_time": 1e9 + row,
            "queued_ts": 500.0 + row + 0.01 * (row > 0),
            "first_token_ts": 500.5 + row,
            "last_token_ts": 501.0 + row,
        }
        for row, tokens in enumerate(prompts)
    ]
    (result / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (result / "workload.jsonl").write_text(
        "\n".join(json.dumps({"input_tok_ids": tokens}) for tokens in prompts)
    )
    return result
