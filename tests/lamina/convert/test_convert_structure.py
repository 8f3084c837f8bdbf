"""Slices: their classes, the order of their instructions, and what is known of attention."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tiny_models import converted, tiny

from lamina.convert import AttentionOp, convert, cut
from lamina.convert.program import Name, Piece
from lamina.convert.trace import trace

_FAMILIES = ["Llama", "OPT", "Phi3", "GPTNeoX", "GPT2", "Qwen3", "Gemma2", "Cohere"]


def _needed(piece: Piece) -> set[Name]:
    needed = set(piece.gives)
    for instruction in reversed(piece.instructions):
        if instruction.result in needed:
            needed.update(instruction.uses())
    return needed


@pytest.mark.long(but=["Gemma2"])
@pytest.mark.parametrize("family", _FAMILIES)
def test_query_comes_first_and_alone(family: str) -> None:
    conversion = converted(family, num_hidden_layers=3)
    for one in conversion.slices[:-1]:
        query, keyvalue, _ = one.program.pieces
        assert {instruction.result for instruction in query.instructions} <= _needed(query)
        assert {instruction.result for instruction in keyvalue.instructions} <= _needed(keyvalue)
        # Were K or V left in a fused product, q would need as many weights as all three.
        op = conversion.attentions[one.index]
        projection = [i for i in query.instructions if i.op_name in {"linear", "addmm"}][-1]
        assert projection.spec is not None
        assert projection.spec.row_shape[-1] == op.heads * op.head_dim


@pytest.mark.long(but=["Llama-changes0-*", "GPT2-*"])
@pytest.mark.parametrize(
    ("family", "changes", "rope", "classes"),
    [
        # The slice before the last hands on no tables (or positions), which makes it a class of its own.
        ("Llama", {}, "carry", 4),
        ("Llama", {}, "recompute", 4),
        ("OPT", {}, "carry", 3),
        ("GPT2", {}, "carry", 3),
        ("Mixtral", {"num_local_experts": 4}, "carry", 4),
    ],
)
def test_layers_share_classes(family: str, changes: dict[str, Any], rope: str, classes: int) -> None:
    conversion = converted(family, rope=rope, num_hidden_layers=6, **changes)
    assert len(conversion.slices) == 7
    assert len(conversion.classes) == classes
    for kind in conversion.classes:
        for member in kind.members:
            assert conversion.slices[member].class_index == kind.index
            assert len(conversion.slices[member].weights) == len(kind.program.weights)
    assert sorted(member for kind in conversion.classes for member in kind.members) == list(range(7))


def test_a_llama_of_70b_with_few_layers() -> None:
    conversion = converted(
        "Llama",
        hidden_size=8192,
        intermediate_size=28672,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
        num_hidden_layers=3,
    )
    assert conversion.cut_bytes[0] == 16384 + 512
    assert conversion.attentions[1] == AttentionOp(1, 64, 8, 128, 128**-0.5, 0, 0.0)


def test_attention_operators_have_their_parameters() -> None:
    layers = ["sliding_attention", "full_attention"]
    gemma = converted(
        "Gemma2",
        head_dim=16,
        sliding_window=7,
        layer_types=layers,
        attn_logit_softcapping=30.0,
        query_pre_attn_scalar=64,
    )
    assert gemma.attentions == (
        AttentionOp(0, 4, 2, 16, 0.125, 7, 30.0),
        AttentionOp(1, 4, 2, 16, 0.125, 0, 30.0),
    )
    scaled = converted("GPT2", scale_attn_by_inverse_layer_idx=True)
    assert [op.scale for op in scaled.attentions] == [0.25, 0.125]


def test_facts_of_a_model() -> None:
    conversion = convert(tiny("Llama", eos_token_id=[2, 5]))
    assert (conversion.vocab_size, conversion.max_positions) == (99, 64)
    assert conversion.eos_token_ids == (2, 5)
    assert conversion.dtype == torch.bfloat16
    assert conversion.config._attn_implementation != "lamina"  # the caller may build a model from it


def test_a_fused_product_that_q_needs_whole_is_left_whole() -> None:
    # Phi3's gate_up_proj is split into halves, both of which the next q needs.
    sources = [kind.source for kind in converted("Phi3", num_hidden_layers=3).classes]
    assert all(source.count("mlp_gate_up_proj_weight)") <= 1 for source in sources)
    assert all("gate_up_proj_weight_take_rows" not in source for source in sources)
    assert "qkv_proj_weight_take_rows" in sources[1]


def test_threads_convert_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = [], []

    def slow_trace(*arguments: Any) -> Any:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()
        return trace(*arguments)

    monkeypatch.setattr(cut, "trace", slow_trace)
    types = (torch.float32, torch.bfloat16)
    with ThreadPoolExecutor(len(types)) as pool:
        # An architecture that no other test has, so that it is not known already.
        config = tiny("Llama", num_hidden_layers=1, intermediate_size=72)
        results = list(pool.map(lambda dtype: convert(config, dtype), types))
    for dtype, conversion in zip(types, results, strict=True):
        assert {value.spec.dtype for value in conversion.slices[1].program.weights} == {dtype}
    assert most == [1, 1]
