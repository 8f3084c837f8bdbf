"""The engine's benchmark: it reports what was run, and a user's mistake as the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import transformers

from laminabench.bench import engine

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
    )
    monkeypatch.setattr(engine, "mini_config", lambda: config)


def test_it_reports_what_was_run(facts: Callable[..., dict[str, Any]]) -> None:
    result = facts(
        "engine", "--batch", "3", "--context", "50", "--rounds", "2", "--threads", "1", "--overlap"
    )
    assert result["options"] == {"threads": 1, "backend": "python", "overlap": True}
    assert result["threads"]["attention"] == 1
    assert (result["batch"], result["context"], result["layers"], result["rounds"]) == (3, 50, 2, 2)
    # Four projections, three of the feed-forward layer, and the head.
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96
    assert result["gemm_parameters"] == 2 * layer + 64 * 100
    assert result["kv_bytes"] == 3 * 50 * 2 * 2 * 2 * 16 * 2
    parts = sum(part["median"] for part in result["of_which"].values())
    assert 0 < parts <= 1.5 * result["iteration_s"]["max"]
    assert result["met"] == (result["ratio_met"] and result["host_met"])


def test_the_table_has_the_targets(shell: Shell) -> None:
    _, out, _ = shell("engine", "--batch", "2", "--context", "40", "--rounds", "1")
    for words in ("iteration / (GEMMs + KV)", "1.25", "host", "1.01 ms", "slices by python, no overlap"):
        assert words in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--threads", "-1"], "'--threads'"),
        (["--context", "600"], "[bench-load-impossible]"),
        (["--batch", "1000000000000"], "[bench-load-impossible]"),
    ],
)
def test_mistakes_are_the_users(arguments: list[str], words: str, shell: Shell) -> None:
    code, _, err = shell("engine", "-v", *arguments)
    assert code == 2
    assert words in err
