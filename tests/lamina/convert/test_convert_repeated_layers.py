"""One layer of each kind is traced; the result equals tracing all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from tiny_models import DEEPSEEK, decodes, seeded, tiny
from torch import Tensor, nn

from lamina.convert import Conversion, convert, cut, trace
from lamina.convert import conversion as conversion_module
from lamina.convert.constants import weight_name
from lamina.convert.repeated_layers import LayerNumber, NotIdenticalError, repeated_kinds

LAYERS = 6
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Gemma3Text": {
        "head_dim": 16,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
    "GPT2": {"n_layer": LAYERS, "n_embd": 64, "n_head": 4},
    "Cohere": {},
    "Mixtral": {"num_local_experts": 4},
    "DeepseekV3": DEEPSEEK,
}


pytestmark = pytest.mark.usefixtures("nothing_known")


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether layers were copied, of each model that was traced."""
    attempts: list[bool] = []
    trace_repeated = trace._trace_repeated

    def recorded(*given: Any) -> Any:
        traced = trace_repeated(*given)
        attempts.append(traced is not None)
        return traced

    monkeypatch.setattr(trace, "_trace_repeated", recorded)
    return attempts


def facts(conversion: Conversion) -> list[object]:
    """All that a conversion is, but for the names of the graph's nodes."""
    names = conversion.constants
    return [
        [(kind.source, kind.code.operators, kind.members) for kind in conversion.classes],
        [(op.layer, op.heads, op.kv_heads, op.head_dim, op.scale, op.sight) for op in conversion.attentions],
        conversion.cut_bytes,
        [
            (
                [weight_name(names, name) for name in piece.weights],
                [(one.op, one.spec, one.bytes) for one in piece.carried],
                piece.class_index,
            )
            for piece in conversion.slices
        ],
        sorted(conversion.tables),
    ]


# Of two kinds of layers.
@pytest.mark.long(but=["Gemma3Text"])
@pytest.mark.parametrize("family", CONFIGS)
def test_copies_are_what_tracing_each_layer_gives(
    family: str, attempts: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(family, **{"num_hidden_layers": LAYERS} | CONFIGS[family])
    copied = facts(convert(config, keep=False))
    assert attempts == [True]
    conversion_module._memory_cache.clear()
    cut._graph.clear()
    monkeypatch.setattr(trace, "repeated_kinds", lambda *_: [])
    assert facts(convert(config, keep=False)) == copied


def test_copied_layers_decode_as_the_model_does(attempts: list[bool]) -> None:
    decodes(seeded(tiny("Llama", num_hidden_layers=4)))
    assert attempts == [True]


class Mlp(nn.Module):
    """Of each layer, with what its number is used for."""

    def __init__(self, number: int, kind: str) -> None:
        super().__init__()
        self.up = nn.Linear(64, 64)
        self.kind = kind
        self.layer_idx = number
        self.scale = 1.0 + (number if kind == "another number" else 0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(x) * self.scale
        if self.kind == "computes with it":
            return y * (1 + self.layer_idx)
        if self.kind == "decides by it":
            return y if self.layer_idx < 2 else -y
        if self.kind == "looks up by it":
            return y * [1.0, 2.0, 3.0, 4.0][self.layer_idx]
        return y


def of_kind(kind: str) -> transformers.PreTrainedModel:
    class Numbered(transformers.LlamaForCausalLM):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            for number, layer in enumerate(self.model.layers):
                layer.mlp = Mlp(number, kind)

    torch.manual_seed(0)
    config = tiny("Llama", num_hidden_layers=4)
    model: Any = Numbered._from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.15)
    made: transformers.PreTrainedModel = model.eval()
    return made


@pytest.mark.long(but=["nothing-*", "decides*"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("nothing", [True]),
        ("computes with it", [False]),
        ("decides by it", [False]),
        ("looks up by it", [False]),
        ("another number", []),
    ],
)
def test_layers_that_depend_on_their_number_are_all_traced(
    kind: str, expected: list[bool], attempts: list[bool]
) -> None:
    decodes(of_kind(kind))
    assert attempts == expected


def test_weights_that_layers_share_are_no_copies() -> None:
    model: Any = seeded(tiny("Llama", num_hidden_layers=4))
    (kind,) = repeated_kinds(model, 4)
    assert kind.members == [0, 1, 2, 3]
    model.model.layers[2].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    assert repeated_kinds(model, 4) == [], "two are left, which are not worth it"


@pytest.mark.parametrize(
    "use",
    [
        lambda n: n + 1,
        lambda n: n == 1,
        lambda n: [0, 1][n],
        bool,
        hash,
        int,
        str,
        lambda n: f"{n}",
        lambda n: {n: 1},
    ],
)
def test_nothing_can_be_computed_from_a_layers_number(use: Any) -> None:
    with pytest.raises((NotIdenticalError, TypeError)):
        use(LayerNumber(1))
