"""Attention workers that absorb: what travels is as wide as the model's heads, and they hold what absorbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from cluster_support import Saved, shared

from lamina import Engine
from lamina.cluster import Machine
from lamina.cluster.meeting import AttentionChannels, StageChannels
from lamina.convert import convert
from lamina.operators import Absorb
from lamina.pipeline import EngineError, Partition
from lamina.pipeline.options import ModelFacts

HEADS, LATENT, ROTATED, NOPE, VALUE, LAYERS = 8, 32, 8, 16, 24, 3  # of the small model


class Counting:
    """A sender that sends nothing."""

    def __init__(self) -> None:
        self.bytes = 0

    def send(self, *parts: torch.Tensor) -> None:
        self.bytes += sum(part.nbytes for part in parts)


@pytest.mark.parametrize(("absorb", "query", "output"), [("model", 40, 32), ("attention", 24, 24)])
def test_bytes_sent_to_attention_with_absorb(
    absorb: Absorb, query: int, output: int, small_model: Callable[..., transformers.PreTrainedModel]
) -> None:
    """Of one of two ranks, for three requests in two memories, in float32."""
    model = small_model("deepseek-v3")
    conversion, ranks, rows = convert(model, absorb=absorb), 2, 3
    alone: Any = object()  # before attention, ranks sum nothing up
    slices = conversion.sharded(ranks).bind(model, 0, alone)
    channels = AttentionChannels(Partition("requests", ranks, 2, HEADS, 1), 0, torch.device("cpu"))
    senders: dict[int, Any] = {0: Counting(), 1: Counting()}
    channels.senders = senders
    q, state = slices[0].query((torch.arange(rows), torch.arange(rows)), None)
    k, _ = slices[0].keyvalue(state)
    channels.send(channels.routes(np.array([0, 1, 1])), q, [k])
    own, stored = HEADS // ranks, LATENT + ROTATED
    assert [sender.bytes for sender in senders.values()] == [
        count * (own * query + stored) * 4 for count in (1, 2)
    ]
    assert StageChannels(conversion, own, rows).attended_bytes == own * output * 4


def test_absorbed_weights_must_fit(saved: Saved, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved("deepseek-v3")
    facts = ModelFacts.of(convert(folder, absorb="attention"))
    assert facts.absorbing_bytes == LAYERS * HEADS * LATENT * (NOPE + VALUE) * 4
    assert ModelFacts.of(convert(folder)).absorbing_bytes == 0
    free = 2 * facts.weight_bytes + 2 * facts.token_bytes
    monkeypatch.setattr("lamina.host_memory.free_bytes", lambda: free)

    def start(*_: object) -> list[int]:
        raise EngineError("test-fits", "it fits")

    monkeypatch.setattr(machine, "start", start)
    for absorb, code in {"model": "test-fits", "attention": "engine-out-of-memory"}.items():
        with pytest.raises(EngineError, match=code):
            Engine(
                folder,
                layout=shared(1, 2, partition="requests"),
                machine=machine,
                kv_tokens=2,
                max_sequences=2,
                absorb=absorb,
            )


def test_models_without_latent_are_refused(saved: Saved, machine: Machine) -> None:
    with pytest.raises(EngineError, match="convert-absorb-unused"):
        Engine(saved("llama-gqa"), layout=shared(1, 1), machine=machine, kv_tokens=100, absorb="attention")
