"""Prompts through the original model, and their K and V into the arena."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import transformers


class Prefill:
    """Computes K and V of a prompt as the model's authors wrote it, unsliced.

    The papers evaluate decoding; prompts are here so that tokens are real. One prompt at a time: what a
    prompt gives does then not depend on which others came with it.
    """

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        # Without the head: nobody reads the logits of a prompt.
        self._model = model.base_model
        self._device = model.device

    def layers(self, tokens: list[int]) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """For every layer its number, K and V: [tokens, kv_heads, head_dim]."""
        # A cache that knows no config keeps every token, whatever window the model's own would cut it to.
        cache = transformers.DynamicCache()
        ids = torch.tensor([tokens], dtype=torch.int64, device=self._device)
        self._model(input_ids=ids, past_key_values=cache, use_cache=True)
        for number, layer in enumerate(cache.layers):
            yield number, layer.keys[0].transpose(0, 1), layer.values[0].transpose(0, 1)
