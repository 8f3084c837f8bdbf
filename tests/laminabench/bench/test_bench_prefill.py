"""Decoding beside prompts that come: what is reported, what is judged, and a user's mistake as the user's."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from lamina.convert import AttentionOp
from lamina.model import PromptRun, PromptTokens
from laminabench.bench import prefill, prefill_together
from laminabench.bench.prefill_traffic import MadeUpPrefill

Shell = Callable[..., tuple[int, str, str]]
CORES = len(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def traffic_machine() -> Iterator[Callable[[prefill.Offer], Any]]:
    """Where workers start whose prompts are made up: one for each offer."""
    make = prefill._machine
    with contextlib.ExitStack() as made:
        yield functools.cache(lambda offer: made.enter_context(make(offer)))


@pytest.fixture
def small(
    monkeypatch: pytest.MonkeyPatch,
    machine: Any,
    traffic_machine: Callable[..., Any],
    tiny: Callable[[], Any],
) -> None:
    def find(offer: prefill.Offer) -> Any:
        return contextlib.nullcontext(traffic_machine(offer) if offer.source == "traffic" else machine)

    monkeypatch.setattr(prefill, "_machine", find)
    monkeypatch.setattr(prefill, "mini_config", tiny)
    monkeypatch.setattr(prefill_together, "mini_config", tiny)
    monkeypatch.setattr(prefill, "LEAST_TBT_S", 3e-4)


COMMAND = (
    *("prefill", "--rounds", "2", "--seconds", "0.3", "--batch", "2"),
    *("--context", "20", "--prompt-tokens", "101"),
)


@pytest.mark.long(but=["computed"])
@pytest.mark.skipif(CORES < 2, reason="model worker and attention worker have a core each")
@pytest.mark.parametrize("source", ["traffic", "computed"])
@pytest.mark.usefixtures("small")
def test_both_ways_take_turns(source: str, facts: Callable[..., dict[str, Any]]) -> None:
    result = facts(*COMMAND, "--prompt-tokens-per-s", "4000", "--source", source)
    assert (result["source"], result["cores"], result["rounds"]) == (source, CORES, 2)
    assert result["offered_tokens_per_s"] == (4000 if source == "traffic" else None)
    for way in result["ways"].values():
        for each in ("without", "with"):
            assert 0 < way[each]["p50_ms"] <= way[each]["p99_ms"] <= way[each]["max_ms"]
        assert way["p99_ratio"]["min"] <= way["p99_ratio"]["median"] <= way["p99_ratio"]["max"]
        # K and V of two layers, one head of 32 dimensions, in bfloat16.
        token_bytes = 2 * 2 * 32 * 2
        rates = way["prompt_tokens_per_s"], way["kv_bytes_per_s"]
        assert rates[1]["median"] == pytest.approx(rates[0]["median"] * token_bytes)
        assert rates[0]["median"] > 0
    for row in result["together"]["rows"]:
        assert row["gain"]["median"] > 0
        rates = [row[f"{name}_tokens_per_s"]["median"] for name in ("one_by_one", "together", "products")]
        assert all(rate > 0 for rate in rates)
        assert row["met"] == (row["share_of_products"]["median"] >= result["together"]["target_share"])
    assert [row["prompt_tokens"] for row in result["together"]["rows"]] == [32, 128, 512]
    if source == "traffic":
        assert result["ways"]["pulled"]["prompt_tokens_per_s"]["max"] < 1.1 * 4000
    judged = result["met"] is not None
    assert judged == (source == "traffic" or CORES >= prefill.OWN_CORES)


def test_a_prompt_without_kv(shell: Shell) -> None:
    code, _, err = shell(*COMMAND, "--prompt-tokens", "1", "-v")
    assert code == 2
    assert "[bench-prompt-too-short]" in err


def test_made_up_kv_comes_at_its_rate() -> None:
    ops = [
        AttentionOp(layer=layer, heads=2, kv_heads=1, head_dim=8, scale=1.0, window=0, softcap=0.0)
        for layer in range(2)
    ]
    made_up = MadeUpPrefill(5000, torch.float32, ops)
    came: list[tuple[int, int]] = []
    began = time.monotonic()
    for text in torch.zeros(700).split(512):
        made_up.call(
            [PromptTokens(PromptRun(700), text)], None, lambda layer, k, v: came.append((layer, len(k)))
        )
    assert came == [(0, 512), (1, 512), (0, 188), (1, 188)]
    assert time.monotonic() - began >= 700 / 5000
