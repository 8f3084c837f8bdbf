"""Prompts through the original model, and their K and V into the arena."""

from __future__ import annotations

import contextlib
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
        with _inference(self._model):
            self._model(input_ids=ids, past_key_values=cache, use_cache=True)
        for number, layer in enumerate(cache.layers):
            yield number, layer.keys[0].transpose(0, 1), layer.values[0].transpose(0, 1)


@contextlib.contextmanager
def _inference(model: torch.nn.Module) -> Iterator[None]:
    """No dropout and no gradients, whatever the model is set to.

    It may be the caller's own, who may call `train()` on it or a part of it between two prompts. So this is
    looked up every time, and put back: neither a prompt's KV nor the caller's model may depend on the other.
    """
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
