"""Model objects that are no longer what their class and config say are refused, each with what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import decodes, seeded, tiny
from torch import Tensor, nn

from lamina.convert import ConversionError, convert


class _Doubling(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def _replace_linear(model: Any) -> None:
    new = _Doubling(64, 96, bias=False)
    new.weight = model.model.layers[0].mlp.up_proj.weight
    model.model.layers[0].mlp.up_proj = new


def _patch_forward(model: Any) -> None:
    mlp = model.model.layers[0].mlp
    own = mlp.forward
    mlp.forward = lambda x: 3 * own(x)


def _set(path: str, name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model.get_submodule(path), name, value)


def _reverse_layers(model: Any) -> None:
    model.model.layers = nn.ModuleList(reversed(model.model.layers))


def _wrap_linear(model: Any) -> None:
    mlp = model.model.layers[0].mlp
    mlp.up_proj = nn.Sequential(mlp.up_proj)


def _untie(model: Any) -> None:
    model.config.tie_word_embeddings = True


def _hook(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda _, __, out: out + 1.0)


def _hook_before(model: Any) -> None:
    model.lm_head.register_forward_pre_hook(lambda _, __: None)


def _add_buffer(model: Any) -> None:
    model.model.norm.register_buffer("shift", torch.ones(64))


@pytest.mark.long(
    but=["_hook-*", "_replace_linear-*", "_wrap_linear-*", "_patch_forward-*", "_untie-*", "<lambda>-*"]
)
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_hook, "model.layers.0.*changed-module"),
        (_hook_before, "lm_head.*changed-module"),
        (_set("model.layers.1.mlp", "act_fn", nn.Identity()), "model.layers.1.mlp.act_fn.*changed-module"),
        (_replace_linear, "_Doubling.*changed-module"),
        (_reverse_layers, "changed-module"),
        (_wrap_linear, r"layers\.0\.mlp\.up_proj.*changed-parameter"),
        (_patch_forward, "model.layers.0.mlp.*changed-module"),
        (_set("model.layers.0.self_attn", "scaling", 0.9), "scaling = 0.9, not 0.25.*changed-module"),
        (lambda model: setattr(model.config, "rms_norm_eps", 0.5), "variance_epsilon.*changed-module"),
        (_add_buffer, r"\(shift\).*changed-module"),
        (lambda model: model.model.rotary_emb.inv_freq.mul_(0.5), "rotary_emb.inv_freq.*changed-buffer"),
        (_set("model", "layers", nn.ModuleList()), "model.layers.0..*changed-parameter"),
        (_set("model", "adapter", nn.Identity()), "model.adapter.*changed-module"),
        (_untie, "lm_head.weight.*ties-differ"),
    ],
)
def test_changes_are_named(change: Callable[[Any], None], named: str) -> None:
    model = seeded(tiny("Llama"))
    change(model)
    with pytest.raises(ConversionError, match=f"(?s){named}") as refused:
        convert(model)
    assert "\n" not in str(refused.value)


def test_a_model_in_use_is_not_a_changed_one() -> None:
    model = seeded(tiny("Llama"))
    with torch.no_grad():
        model(input_ids=torch.ones(1, 2, dtype=torch.int64), output_hidden_states=True)  # leaves hooks behind
    model.model.layers[0].self_attn.attention_dropout = 0.0
    model.train()
    conversion = convert(model)
    decodes(model.eval(), conversion, conversion.bind(model))


def test_equal_weights_need_not_be_one() -> None:
    model = seeded(tiny("Llama", tie_word_embeddings=True))
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    conversion = convert(model)
    conversion.bind(model)
    tensors = {**dict(model.named_parameters()), "lm_head.weight": torch.randn(99, 64)}
    with pytest.raises(ConversionError, match="convert-ties-differ"):
        conversion.bind(tensors)


def test_resized_embeddings_are_the_configs() -> None:
    model = seeded(tiny("Llama"))
    model.resize_token_embeddings(110)
    assert convert(model).vocab_size == 110
