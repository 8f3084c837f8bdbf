"""Descriptions: ready for JSON, and the paper's transfer formula."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tiny_models import converted

from lamina.convert import describe
from lamina.convert.describe import transfer


@pytest.mark.long(but=["8-2"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1), (8, 2)])
def test_counted_bytes_agree_with_the_formula(heads: int, kv_heads: int) -> None:
    conversion = converted("Llama", num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=16)
    moved = transfer(conversion, conversion.attentions[1], 2)
    assert moved["agrees"]
    assert moved["bytes"] == (2 * heads + 2 * kv_heads) * 16 * 2


@pytest.mark.parametrize(("index", "key"), [(0, "q"), (0, "v"), (1, "attended")])
def test_transferred_bytes_are_counted_from_the_slices(index: int, key: str) -> None:
    conversion = converted("Llama")
    program = conversion.slices[index].program
    name = {"q": program.pieces[0].gives[0], "v": program.pieces[1].gives[-1]}.get(key)
    if name is None:
        assert program.attended is not None
        value = replace(program.attended, spec=replace(program.attended.spec, bytes=4096))
        changed = replace(program, attended=value)
    else:
        changed = replace(program, specs={**program.specs, name: replace(program.specs[name], bytes=4096)})
    slices = [replace(one, program=changed) if one.index == index else one for one in conversion.slices]
    moved = transfer(replace(conversion, slices=tuple(slices)), conversion.attentions[0], 2)
    assert dict(moved)[f"{key}_bytes"] == 4096
    assert not moved["agrees"]


def test_a_description_is_json_and_complete() -> None:
    conversion = converted("Llama", num_hidden_layers=3)
    reported = json.loads(json.dumps(describe(conversion)))
    assert [one["class"] for one in reported["slices"]] == [one.class_index for one in conversion.slices]
    assert all(one["agrees"] for one in reported["transfer"])
    middle = reported["slices"][1]
    kinds = [[one["kind"] for one in part["instructions"]] for part in middle["parts"]]
    assert [part.count("product") for part in kinds] == [5, 2, 0]
    assert middle["cut_bytes"] == sum(value["bytes"] for value in middle["cut"]) == conversion.cut_bytes[1]
    weights = [w["name"] for part in middle["parts"] for one in part["instructions"] for w in one["weights"]]
    assert "model.layers.0.self_attn.o_proj.weight" in weights
    assert weights[-1] == "model.layers.1.self_attn.v_proj.weight"
    assert [part["gives"][0]["type"] for part in middle["parts"][:2]] == [
        "bfloat16[B, 4, 16]",
        "bfloat16[B, 2, 16]",
    ]
    assert middle["inputs"][-1] == {"name": "attended", "type": "bfloat16[B, 4, 16]", "bytes": 128}


@pytest.mark.long(but=["GPT2-*", "Gemma-*"])
@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("Phi3", "model.layers.0.self_attn.qkv_proj.weight[0:64]"),
        ("GPT2", "transformer.h.0.attn.c_attn.weight[:, 0:64]"),
        ("GPTNeoX", "gpt_neox.layers.0.attention.query_key_value.weight[0:16 and 3 more like it]"),
        ("Gemma", "add(to(model.layers.0.input_layernorm.weight))"),
    ],
)
def test_split_and_folded_weights_are_named(family: str, expected: str) -> None:
    first = describe(converted(family))["slices"][0]
    assert expected in {
        weight["name"] for one in first["parts"][0]["instructions"] for weight in one["weights"]
    }
