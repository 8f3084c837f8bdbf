"""Tiny models to convert, and a plain decoder that runs slices with attention written out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import transformers
from plain_attention import plain_partial
from torch import Tensor, nn
from transformers import PreTrainedModel

from lamina.convert import AttentionOp, BoundSlice, Conversion, convert
from lamina.operators import Attended

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


# Further fields of `tiny("DeepseekV3")`: latent KV, and experts behind a dense first layer.
DEEPSEEK = {
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}


def tiny(family: str, **changes: Any) -> Any:
    """Return a config of a few thousand parameters; `family` is the config class without its suffix."""
    return getattr(transformers, f"{family}Config")(**{**_SIZES, **changes})


def seeded(config: Any, seed: int = 0) -> PreTrainedModel:
    """Return a model whose weights are so large that every operator shows in the logits."""
    torch.manual_seed(seed)
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = "norm" in name or "ln_" in name
            parameter.normal_(1.0 if norm and name.endswith("weight") else 0.0, 0.2 if norm else 0.15)
    return model.eval()


def custom(compute: Callable[[Tensor, Tensor], Tensor]) -> PreTrainedModel:
    """Return a Llama whose class has its own MLP: `compute` of a projection of its input, and its input."""

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            return compute(self.up(x), x)

    class Custom(transformers.LlamaForCausalLM):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            for layer in self.model.layers:
                layer.mlp = Mlp()

    torch.manual_seed(0)
    model: Any = Custom._from_config(tiny("Llama"), attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.15)
    made: PreTrainedModel = model.eval()
    return made


class Decoder:
    """A decoder that runs bound slices with a KV cache in lists and attention in a few lines."""

    def __init__(
        self,
        attentions: Sequence[AttentionOp],
        bound: Sequence[BoundSlice],
        attended: Attended,
    ) -> None:
        self.attentions, self.bound, self.attended = attentions, bound, attended
        self.contexts: list[tuple[Tensor, ...]] = []  # that slices have handed on
        self.states = next((piece.states for piece in bound if piece.states), None)
        self.begun: set[int] = set()
        self.keys: dict[tuple[int, int], list[Tensor]] = {}
        self.values: dict[tuple[int, int], list[Tensor]] = {}

    def step(self, requests: Sequence[int], tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Return the logits of one token each for some requests."""
        context: tuple[Tensor, ...] = (torch.tensor(tokens), torch.tensor(positions))
        attended: Tensor | None = None
        if self.states:
            for new in set(requests) - self.begun:
                self.states.begin(new)
            self.begun.update(requests)
            self.states.selected = self.states.rows(requests)
        for op, piece in zip(self.attentions, self.bound, strict=False):
            q, state = piece.query(context, attended)
            *stored, state = piece.keyvalue(state)
            context = piece.rest(state)
            self.contexts.append(context)
            assert len(stored) == (1 if op.latent else 2)
            for sent, heads in ((q, op.heads), *((one, op.kv_heads) for one in stored)):
                assert sent.shape == (len(requests), heads, op.query_dim if sent is q else op.head_dim)
                assert sent.is_contiguous()
            q = self.attended.query(op.layer, q)
            k, v = (stored[0], stored[0][..., : op.latent]) if op.latent else stored
            attended = torch.stack([self._attend(op, r, q[i], k[i], v[i]) for i, r in enumerate(requests)])
            attended = self.attended.output(op.layer, attended)
        return self.bound[-1].logits(context, attended)

    def _attend(self, op: AttentionOp, request: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = (op.layer, request)
        self.keys.setdefault(place, []).append(k)
        self.values.setdefault(place, []).append(v)
        keys, values = torch.stack(self.keys[place]), torch.stack(self.values[place])
        scoring = {"scale": op.scale, "window": op.window, "softcap": op.softcap, "chunk": op.chunk}
        return plain_partial(q, keys, values, sinks=self.attended.sinks[op.layer], **scoring)[0]


def decodes(
    model: PreTrainedModel,
    conversion: Conversion | None = None,
    bound: Sequence[BoundSlice] = (),
    *,
    by_token: bool = False,
) -> Conversion:
    """Check that slices give the model's own logits: prompts one by one, then one ragged batch of all.

    `by_token`, the model sees prompts token by token: a recurrence in chunks is rounded otherwise. And what
    it rounds, a state has for good.
    """
    times = 10 if by_token else 1
    conversion, prompts = conversion or convert(model), (2, 9, 6)
    bound = bound or conversion.bind(model)
    generator = torch.Generator().manual_seed(1)
    decoder = Decoder(conversion.attentions, bound, conversion.attended(model))
    requests = range(len(prompts))
    texts = [torch.randint(3, 99, (1, length), generator=generator) for length in prompts]
    caches, expected = [], []
    with torch.no_grad():
        for request, text in zip(requests, texts, strict=True):
            cache, logits = None, []
            for part in text.split(1 if by_token else text.shape[1], dim=1):
                output = model(input_ids=part, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                logits.append(output.logits[0])
            caches.append(cache)
            ours = [decoder.step([request], [int(t)], [i]) for i, t in enumerate(text[0])]
            assert_close(torch.cat(ours), torch.cat(logits), times)
            expected.append(logits[-1][-1])
        for step in range(3):
            tokens = [int(logits.argmax()) for logits in expected]
            positions = [length + step for length in prompts]
            expected = [
                model(input_ids=torch.tensor([[token]]), past_key_values=cache, use_cache=True).logits[0, -1]
                for token, cache in zip(tokens, caches, strict=True)
            ]
            ours_now = decoder.step(list(requests), tokens, positions)
            assert_close(ours_now, torch.stack(expected), times)
    return conversion


def assert_close(ours: Tensor, theirs: Tensor, times: int = 1) -> None:
    # Logits of these models are of size 1 to 10: this is float32's accuracy after a hundred operators.
    torch.testing.assert_close(ours, theirs, rtol=2e-5 * times, atol=3e-5 * times)


@cache
def _converted(family: str, dtype: torch.dtype, rope: str, changes: str) -> Conversion:
    return convert(tiny(family, **json.loads(changes)), dtype, rope)


def converted(
    family: str, dtype: torch.dtype | str = torch.bfloat16, rope: str = "carry", **changes: Any
) -> Conversion:
    """Return the conversion of a tiny config, made once, as nothing changes it."""
    return _converted(family, dtype, rope, json.dumps(changes, sort_keys=True))
