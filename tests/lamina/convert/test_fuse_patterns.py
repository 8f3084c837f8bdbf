"""Which operators and products of a slice are found and fused, and what is left alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from tiny_models import converted, custom, seeded, tiny
from torch import Tensor

from lamina.convert import convert, packing
from lamina.convert.fuse import Fused, Fusing, fuse

needs_packing = pytest.mark.skipif(not packing.packs(), reason="this CPU has no products of bfloat16")


def _fused(family: str, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> dict[str, int]:
    """In all slices together."""
    result: Counter[str] = Counter()
    for kind in converted(family, dtype, **changes).classes:
        for name, count in kind.fused(Fusing(merge=False)).counts.items():
            result[name] += count * len(kind.members)
    return {name: count for name, count in result.items() if count}


# Two layers. The first norm of a model has no sum before it; of those of q and k none has.
@pytest.mark.parametrize(
    ("family", "changes", "norms", "sums", "rotations", "gates"),
    [
        ("Llama", {}, 1, 4, 4, 2),
        ("Qwen3", {"head_dim": 32}, 1 + 4, 4, 4, 2),
        ("Gemma2", {"head_dim": 16}, 1 + 4, 4, 4, 2),
    ],
)
def test_patterns_of_a_layer_are_matched(
    family: str, changes: dict[str, Any], norms: int, sums: int, rotations: int, gates: int
) -> None:
    result = {"RMSNorm": norms, "sum and RMSNorm": sums, "rotary embedding": rotations}
    assert _fused(family, **changes) == {**result, "gated activation": gates}
    # Activations of float32 have no table.
    assert _fused(family, torch.float32, **changes) == result


def test_nothing_of_it_is_left_in_the_source() -> None:
    code = converted("Llama").classes[1].fused(Fusing()).code
    assert "add_rms_norm(context_1, linear_1, post_attention_layernorm_weight)" in code.text
    for lost in ("rsqrt", "mean", "silu(", "cat(", " + ", " * "):
        assert lost not in code.text


def test_products_of_one_value_are_one() -> None:
    kind = converted("Llama").classes[1]
    assert kind.source.count("linear(") == 7
    separate, joined = kind.fused(Fusing()), kind.fused(Fusing(join=True))
    assert separate.code.text.count("linear(") == 5, "gate and up, k and v"
    assert joined.code.text.count("linear(") == 4, "q, k and v, too"
    assert [len(numbers) for numbers in joined.made_of() if len(numbers) > 1] == [2, 3]
    assert sorted(number for numbers in joined.made_of() for number in numbers) == list(range(9))


@needs_packing
def test_merged_weights_are_there_once() -> None:
    model = seeded(tiny("Llama")).bfloat16()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    middle = convert(model).bind(model, q_first=False)[1]
    packed = sorted(packing.sizes(weight) for weight in middle.weights if packing.is_matrix(weight))
    assert packed == [(64, 64), (64, 96), (128, 64), (192, 64)]
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def _alone(compute: Any) -> Fused:
    """Of a model whose MLP ends in something of its own; its operators alone."""
    kind = convert(custom(compute), torch.bfloat16).classes[1]
    return fuse(kind.program, Fusing(merge=False))


def test_similar_patterns_are_not_replaced() -> None:
    usual = {"RMSNorm": 0, "sum and RMSNorm": 2, "LayerNorm": 0, "rotary embedding": 2, "gated activation": 0}

    def other_power(up: Tensor, _: Tensor) -> Tensor:
        return up * torch.rsqrt(up.pow(3).mean(-1, keepdim=True) + 1e-6)

    def other_value(up: Tensor, x: Tensor) -> Tensor:
        return x * torch.rsqrt(up.pow(2).mean(-1, keepdim=True) + 1e-6)

    def not_over_rows(up: Tensor, _: Tensor) -> Tensor:
        heads = up.view(-1, 1, 4, 16).float()
        return (heads * torch.rsqrt(heads.pow(2).mean(-2, keepdim=True) + 1e-6)).to(up.dtype).view(up.shape)

    def one_number_gates_all(up: Tensor, x: Tensor) -> Tensor:
        return torch.nn.functional.silu(up[..., :1]) * x

    def all_of_them(up: Tensor, x: Tensor) -> Tensor:
        lookalikes = (other_power, other_value, not_over_rows, one_number_gates_all)
        return torch.stack([one(up, x) for one in lookalikes]).sum(0)

    assert _alone(all_of_them).counts == usual


def test_values_with_other_users_stay() -> None:
    def both(up: Tensor, x: Tensor) -> Tensor:
        active = torch.nn.functional.silu(up)
        return active * x + active

    fused = _alone(both)
    assert fused.counts["gated activation"] == 1
    assert "silu_1 = silu(" in fused.code.text
