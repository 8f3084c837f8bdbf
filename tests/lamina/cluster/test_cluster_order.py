"""Sums in the same order have the same bits on any worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cluster_support import Saved, prompts, shared

from lamina import Engine, Sampling
from lamina.cluster import Layout, Machine
from lamina.serve.requests import Completion

Run = Callable[..., list[Completion]]
WISH = Sampling(max_tokens=24, logprobs=3)


@pytest.fixture(scope="module")
def run(saved: Saved, machine: Machine) -> Run:
    """What an engine makes of the same seven prompts."""

    def make(layout: Layout | None, dtype: torch.dtype, wish: Sampling = WISH, **options: Any) -> Any:
        machines = {} if layout is None else {"machine": machine}
        folder = saved("llama-gqa", dtype)
        with Engine(folder, layout=layout, kv_tokens=2000, threads=1, **machines, **options) as engine:
            made = engine.generate(prompts(40, 3, 9, 1, 22, 15, 8), wish)
        return [result.completions[0] for result in made]

    return make


@pytest.mark.long(but=["torch.bfloat16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_assignment_of_requests_changes_no_bit(run: Run, dtype: torch.dtype) -> None:
    """Tokens and log-probabilities: of one batch the rows are the same, and each is attended to alone."""
    alone = run(None, dtype)
    for more in (
        {"pipelining": "serial"},
        {"pipelining": "serial", "partition": "requests", "attention_workers": 2},
        {"pipelining": "serial", "partition": "requests", "attention_workers": 3},
        {"pipelining": "serial", "stream_chunks": 3},
        {"pipelining": "serial", "stream_chunks": 2, "partition": "requests", "attention_workers": 2},
    ):
        for overlap in (False, True):
            assert run(shared(**more), dtype, overlap=overlap) == alone, (more, overlap)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_separate_heads_change_no_bit(run: Run, dtype: torch.dtype) -> None:
    """Attention to one head knows nothing of the others."""
    alone = run(None, dtype)
    for more in ({"attention_workers": 2}, {"stream_chunks": 2, "stream_along": "heads"}):
        assert run(shared(pipelining="serial", **more), dtype) == alone


@pytest.mark.parametrize("batches", [2, 3])
def test_how_batches_take_turns_changes_no_bit(run: Run, batches: int) -> None:
    """The same batches on replicas of their own, or going round."""
    fixed = run(shared(model_workers=batches, pipelining="fixed", batches=batches), torch.float32)
    for more in (
        {"model_workers": batches - 1, "pipelining": "rotational"},
        {"model_workers": batches, "pipelining": "fixed", "partition": "requests", "attention_workers": 2},
    ):
        assert run(shared(batches=batches, **more), torch.float32, overlap=True) == fixed


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 2e-5), (torch.bfloat16, 0.25)], ids=["float32", "bfloat16"]
)
def test_ranks_add_up_otherwise_and_stay_close(run: Run, dtype: torch.dtype, bound: float) -> None:
    """Sums over ranks are rounded otherwise: as far as the tokens are the same, so are the log-probabilities,
    to some roundings of their size. Measured: 6e-6 apart in float32, 0.07 in bfloat16.
    """
    one = run(shared(pipelining="serial"), dtype)
    two = run(shared(model_workers=2, pipelining="serial"), dtype)
    compared, worst = 0, 0.0
    for own, theirs in zip(one, two, strict=True):
        assert own.logprobs is not None
        assert theirs.logprobs is not None
        if dtype == torch.float32:
            assert own.tokens == theirs.tokens
        for place, (a, b) in enumerate(zip(own.logprobs, theirs.logprobs, strict=True)):
            if own.tokens[:place] != theirs.tokens[:place] or own.tokens[place] != theirs.tokens[place]:
                break
            compared += 1
            worst = max(worst, abs(a.chosen - b.chosen))
    assert compared > 24
    assert worst < bound


def test_seeds_decide_however_requests_are_distributed(run: Run) -> None:
    wish = Sampling(max_tokens=20, temperature=1.3, top_k=30, top_p=0.95, seed=11, logprobs=2)
    alone = run(None, torch.float32, wish)
    for more in ({"pipelining": "serial"}, {"partition": "requests", "attention_workers": 2}):
        made = run(shared(**more), torch.float32, wish)
        assert [one.tokens for one in made] == [one.tokens for one in alone]
