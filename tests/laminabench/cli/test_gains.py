"""`laminabench gains` as a person uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]


def test_gains_of_a_single_token(shell: Shell) -> None:
    Path("one.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,1\n")
    code, out, err = shell("gains", "--trace", "one.csv", "--model", "llama3-70b", "-q")
    assert (code, err) == (0, "")
    assert "- / -" in out


def test_gains_prints_both_cost_sets(shell: Shell, as_json: AsJson) -> None:
    facts = as_json("gains", "--model", "llama3-70b", "--trace", "azure-code", "--offline", "-q")
    assert [cell["costs"] for cell in facts["cells"]] == ["vllm-0.14", "vidur-2024"]
    for cell in facts["cells"]:
        rate = cell["throughput_tokens_per_s"]
        assert cell["gain"] == pytest.approx(rate["lamina"] / rate["vllm"] - 1)
        assert cell["usd_per_hour"] == {"vllm": pytest.approx(44.24), "lamina": pytest.approx(40.64)}
    code, out, _ = shell("gains", "--model", "llama3-70b", "--trace", "azure-code", "--offline", "-q")
    assert code == 0
    assert "the paper measured" in out
