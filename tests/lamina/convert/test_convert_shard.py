"""Slices split over ranks: threads that sum with each other decode what one rank decodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tiny_models import Decoder, converted, custom, seeded, tiny
from torch import Tensor
from transformers import PreTrainedModel

from lamina.convert import AttentionOp, BoundSlice, ConversionError, Sharded, convert
from lamina.convert.sharding.experts import experts_of
from lamina.operators import Absorb, Attended, Experts

SMALL = Callable[..., PreTrainedModel]


class Meeting:
    """Ranks in one process; each has a collective of its own, which counts what it is asked for."""

    def __init__(self, degree: int) -> None:
        self.barrier = threading.Barrier(degree, timeout=20)
        self.given: list[Any] = [None] * degree
        self.ranks = [Rank(self, rank) for rank in range(degree)]


class Rank:
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.reduced, self.gathered = meeting, rank, 0, 0

    def all_reduce(self, x: Tensor) -> Tensor:
        """In place, which is what slices have most to fear from."""
        self.reduced += 1
        result = torch.stack(self._all(x)).sum(0)
        self.meeting.barrier.wait()
        return x.copy_(result)

    def all_gather(self, x: Tensor) -> Tensor:
        self.gathered += 1
        result = torch.cat(self._all(x), -1)
        self.meeting.barrier.wait()
        return result

    def _all(self, x: Tensor) -> list[Tensor]:
        assert x.is_contiguous()
        self.meeting.given[self.rank] = x
        self.meeting.barrier.wait()
        return list(self.meeting.given)


Check = Callable[..., tuple[Sharded, Meeting]]


@pytest.fixture
def check() -> Check:
    """Ranks decode what the unsplit slices do, and hand on the same from slice to slice, to the bit."""
    tokens = torch.randint(3, 99, (4, 3), generator=torch.Generator().manual_seed(3))

    def decode(
        attentions: Sequence[AttentionOp], bound: Sequence[BoundSlice], attended: Attended
    ) -> tuple[Tensor, list[Any]]:
        running = Decoder(attentions, bound, attended)
        steps = [running.step(range(3), now.tolist(), [step] * 3) for step, now in enumerate(tokens)]
        return torch.stack(steps), running.contexts

    def checked(
        model: PreTrainedModel, degree: int, experts: Experts = "tp", absorb: Absorb = "model"
    ) -> tuple[Sharded, Meeting]:
        conversion = convert(model, absorb=absorb)
        sharded, meeting = conversion.sharded(degree, experts), Meeting(degree)
        attended = conversion.attended(model)

        def run(rank: int) -> tuple[Tensor, list[Any]]:
            own = sharded.heads_of(rank)
            bound = sharded.bind(model, rank, meeting.ranks[rank])
            return decode(sharded.attentions, bound, attended.of(slice(own.start, own.stop)))

        with torch.no_grad():
            expected, _ = decode(conversion.attentions, conversion.bind(model), attended)
            with ThreadPoolExecutor(degree) as pool:
                ranks = list(pool.map(run, range(degree)))
        for together in zip(*(contexts for _, contexts in ranks), strict=True):
            for values in zip(*together, strict=True):
                assert all(torch.equal(value, values[0]) for value in values)
        for logits, _ in ranks:
            torch.testing.assert_close(logits, expected, rtol=2e-5, atol=2e-5)
            assert torch.equal(logits.argmax(-1), expected.argmax(-1))
        return sharded, meeting

    return checked


@pytest.mark.long(but=["gemma2", "mixtral", "gpt2"])
def test_two_ranks_decode_what_one_does(check: Check, family: str, small_model: SMALL) -> None:
    model = small_model(family)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():  # biases and norms start as zeros and ones, which would hide what happens to them
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.1)
    sharded, meeting = check(model, 2)
    layers, steps = len(sharded.attentions), 4
    # GPT-NeoX adds attention and MLP before anything else; experts looked up by token are kept whole, and
    # need a sum only for others beside them. Llama 4's are products with all experts.
    batched = hasattr(model.config, "num_experts_per_tok") and family != "llama4"
    alongside = family in {"glm4-moe", "deepseek-v2", "deepseek-v3"}
    a_layer = 1 if family == "gpt-neox" or (batched and not alongside) else 2
    # OPT-350M's embedding is projected, and its two last products need one sum instead of a gathering.
    last = (1, 0) if family == "opt-350m" else (0, 1)
    for rank in meeting.ranks:
        assert (rank.reduced, rank.gathered) == (steps * (a_layer * layers + last[0]), steps * last[1])
    saved = sharded.describe().weights["whole"]
    parts = (name.split(".")[-2] for name in saved if "experts" not in name)
    projections = {part for part in parts if "_proj" in part}
    # What makes a latent is on all ranks, as the latent is; so is what a norm over all heads needs.
    latent = {"q_a_proj", "kv_a_proj_with_mqa"} if sharded.attentions[0].latent else set()
    assert projections == ({"q_proj", "k_proj"} if family == "minimax-m2" else latent)
    assert any("experts" in name for name in saved) == batched


@pytest.mark.long(but=["2-split"])
@pytest.mark.parametrize(("degree", "experts"), [(2, "split"), (4, "whole")])
def test_grouped_experts_are_split_where_their_rows_stay_aligned(
    check: Check, degree: int, experts: str
) -> None:
    model = seeded(tiny("Mixtral", num_local_experts=4, num_key_value_heads=4, intermediate_size=40))
    sharded, meeting = check(model, degree)
    message = sharded.describe().weights
    assert any("experts" in name for name in message["rows"]) == (experts == "split")
    assert any("experts" in name for name in message["whole"]) == (experts == "whole")
    assert meeting.ranks[0].reduced == 4 * 2 * (2 if experts == "split" else 1)


_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = (
    {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24}
    | {"num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
    | {"moe_intermediate_size": 32, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
)
_GLM_MOE = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}


@pytest.mark.long(but=["Glm4Moe-changes6-2-batched_mm"])
@pytest.mark.parametrize("form", ["grouped_mm", "batched_mm"])
@pytest.mark.parametrize(
    ("family", "changes", "degree"),
    [
        ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}, 2),
        ("Mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2, "num_key_value_heads": 4}, 4),
        ("Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 1, "num_key_value_heads": 4}, 4),
        ("Qwen2Moe", {**_MOE, "shared_expert_intermediate_size": 48}, 2),
        ("Qwen3Moe", {**_MOE, "head_dim": 16}, 2),
        ("Olmoe", _MOE, 2),
        ("Glm4Moe", _GLM_MOE, 2),
        ("GraniteMoeShared", {"num_local_experts": 4, "shared_intermediate_size": 32}, 2),
        ("MiniMaxM2", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}, 2),
        ("DeepseekV2", {**_LATENT, "topk_method": "greedy"}, 2),
        ("DeepseekV3", {**_LATENT, "n_group": 2}, 4),
    ],
)
def test_distributed_experts_decode_what_one_rank_does(
    check: Check, family: str, changes: dict[str, Any], degree: int, form: str
) -> None:
    model = seeded(tiny(family, **changes))
    model.set_experts_implementation(form)
    sharded, meeting = check(model, degree, "ep")
    assert any("_grouped_mm" in kind.source for kind in sharded.classes) == (form == "grouped_mm")
    message = sharded.describe().weights
    mixed = [name for name, layer in model.named_modules() if hasattr(layer, "experts")]
    assert len(message["experts"]) == 2 * len(mixed)
    assert all("experts.gate_up_proj" in name or "experts.down_proj" in name for name in message["experts"])
    # One sum after attention, one after the experts, with those beside them.
    assert meeting.ranks[0].reduced == 4 * 2 * len(sharded.attentions)


def test_ranks_whose_attention_workers_absorb_split_no_matrix_of_theirs(
    check: Check, small_model: SMALL
) -> None:
    sharded, _ = check(small_model("deepseek-v3"), 2, absorb="attention")
    op = sharded.attentions[0]
    assert (op.heads, op.query_dim, op.output_dim, op.head_dim) == (4, 24, 24, 40)
    assert not any("kv_b_proj" in name for names in sharded.describe().weights.values() for name in names)


def test_ranks_have_their_own_experts_only() -> None:
    experts = 7
    model = seeded(tiny("Mixtral", num_local_experts=experts, num_key_value_heads=4))
    sharded = convert(model).sharded(4, "ep")
    assert [list(experts_of(rank, 4, experts)) for rank in range(4)] == [[0], [1, 2], [3, 4], [5, 6]]
    table: Any = model.get_parameter("model.layers.0.mlp.experts.down_proj").transpose(-1, -2)
    for rank in range(4):
        own = experts_of(rank, 4, experts)
        (stored,) = (
            weight
            for weight in sharded.bind(model, rank, Meeting(4).ranks[rank])[1].weights
            if weight.shape[1:] == table.shape[1:]
        )
        assert torch.equal(stored, table[own.start : own.stop])
        assert stored.untyped_storage().nbytes() == len(own) * table[0].nbytes


@pytest.mark.parametrize(
    ("family", "changes", "code"),
    [
        ("Llama", {}, "convert-no-experts"),
        ("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 2}, "convert-experts-few"),
    ],
)
def test_experts_that_cannot_be_distributed(family: str, changes: dict[str, Any], code: str) -> None:
    with pytest.raises(ConversionError, match=code):
        converted(family, num_key_value_heads=4, **changes).sharded(4, "ep")


@pytest.mark.long(but=["gpt2"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt-neox"])
def test_four_ranks_decode_what_one_does(check: Check, family: str, small_model: SMALL) -> None:
    sharded, _ = check(small_model(family), 4)
    op = sharded.attentions[0]
    assert list(sharded.heads_of(3)) == list(range(3 * op.heads, 4 * op.heads))
    assert list(sharded.kv_heads_of(1)) == list(range(op.kv_heads, 2 * op.kv_heads))


def test_a_norm_over_all_heads_keeps_their_products_whole(check: Check) -> None:
    sharded, _ = check(seeded(tiny("Olmo2")), 2)
    assert "own_part(" in sharded.classes[1].source
    weights = sharded.describe().weights
    assert "model.layers.0.self_attn.q_proj.weight" in weights["whole"]
    assert "model.layers.0.self_attn.v_proj.weight" in weights["columns"]


@pytest.mark.long
def test_a_norm_over_attention_output_gathers_it(check: Check) -> None:
    sharded, meeting = check(seeded(tiny("BitNet")), 2)
    assert sharded.describe().collectives[1][1]["query"] == ["all_gather"]
    assert meeting.ranks[1].gathered == 4 * 2  # not its 99 tokens, which two ranks cannot share evenly


@pytest.mark.long(but=["softmax"])
@pytest.mark.parametrize(
    "compute",
    [
        lambda up, x: up.cumsum(-1),
        lambda up, x: up.softmax(-1) * x,
        lambda up, x: up[..., :24].repeat(1, 1, 2).roll(1, -1) @ up.new_ones(48, 64),
        lambda up, x: up.view(-1, 1, 2, 32).flip(2).flatten(2),
        lambda up, x: up.max(-1, keepdim=True).values + x,
    ],
    ids=["cumsum", "softmax", "roll", "flip", "max"],
)
def test_operators_that_need_all_columns_have_them(
    check: Check, compute: Callable[[Tensor, Tensor], Tensor]
) -> None:
    check(custom(compute), 2)


def test_a_rank_holds_its_share_of_the_weights_only(small_model: SMALL) -> None:
    model = small_model("llama")
    sharded = convert(model).sharded(2)
    bound = sharded.bind(model, 1, Meeting(2).ranks[1])
    for number, name in enumerate(("o_proj", "norm", "gate_proj", "up_proj", "down_proj")):
        weight = bound[1].weights[number]
        layer: Any = model.get_submodule("model.layers.0")
        modules = {**dict(layer.mlp.named_children()), "o_proj": layer.self_attn.o_proj}
        whole = layer.post_attention_layernorm.weight if name == "norm" else modules[name].weight
        share = 1 if name == "norm" else 2
        assert weight.untyped_storage().nbytes() == whole.nbytes // share
    message = sharded.describe()
    tensors = {tensor.data_ptr(): tensor.untyped_storage().nbytes() for b in bound for tensor in b.weights}
    assert sum(tensors.values()) == message.rank_weight_bytes
    embedding: Any = model.get_input_embeddings().weight
    rank, whole = (size - embedding.nbytes for size in (message.rank_weight_bytes, message.weight_bytes))
    assert rank < whole * 0.52


def test_a_tied_table_is_stored_once(small_model: SMALL) -> None:
    model = small_model("llama-tied")
    sharded = convert(model).sharded(2)
    first, *_, last = sharded.bind(model, 1, Meeting(2).ranks[1])
    table, product = first.weights[0], last.weights[-1]
    assert product.untyped_storage().data_ptr() == table.untyped_storage().data_ptr()
    assert torch.equal(product, table[60:])


def test_split_weights_are_described_by_name(small_model: SMALL) -> None:
    message = convert(small_model("gpt2")).sharded(2).describe()
    weights = message.weights
    assert "transformer.h.1.mlp.c_proj.weight" in weights["rows"]
    assert "transformer.h.1.mlp.c_proj.bias" in weights["first"]
    assert "transformer.h.1.mlp.c_fc.bias" in weights["columns"]
    assert "transformer.h.0.attn.c_attn.weight[:, 0:64]" in weights["columns"]
    assert "transformer.wpe.weight" in weights["whole"]
    assert message.collectives[1][1]["query"] == ["all_reduce", "all_reduce"]


def test_slices_of_one_class_share_their_code() -> None:
    conversion = converted("Llama", num_hidden_layers=5)
    sharded = conversion.sharded(2)
    assert [kind.members for kind in sharded.classes] == [kind.members for kind in conversion.classes]
    assert "collective.all_reduce(linear_1)" in sharded.classes[1].source
    assert conversion.sharded(2) is sharded


def test_one_rank_is_the_model_itself(small_model: SMALL) -> None:
    model = small_model("llama")
    conversion = convert(model)
    alone = conversion.sharded(1)
    assert alone.attentions == conversion.attentions
    for ours, theirs in zip(alone.bind(model, 0, None), conversion.bind(model), strict=True):
        assert ours.source == theirs.source
        assert all(a is b or torch.equal(a, b) for a, b in zip(ours.weights, theirs.weights, strict=True))
    assert alone.describe().weights["columns"] == []


@pytest.mark.parametrize("degree", [0, 3])
def test_heads_that_cannot_be_shared_are_refused(degree: int) -> None:
    with pytest.raises(ConversionError, match="convert-shard-degree"):
        converted("Llama").sharded(degree)


def test_invalid_bindings_are_refused() -> None:
    sharded = converted("Llama").sharded(2)
    collective = Meeting(2).ranks[0]
    with pytest.raises(ConversionError, match="convert-shard-rank"):
        sharded.bind({}, 2, collective)
    with pytest.raises(ConversionError, match="convert-shard-backend"):
        sharded.bind({}, 0, collective, backend="aot")
    with pytest.raises(ConversionError, match="convert-no-collective"):
        sharded.bind({}, 0, None)


@pytest.mark.long(but=["Phi3"])
@pytest.mark.parametrize("family", ["Llama", "Phi3", "Cohere"])
def test_native_operators_change_no_bit_of_a_rank(family: str) -> None:
    model = seeded(tiny(family)).bfloat16()
    conversion = convert(model)
    sharded, attended = conversion.sharded(2), conversion.attended(model)
    made: list[list[Tensor]] = []
    options: list[dict[str, Any]] = [{"backend": "torch"}, {}, {"q_first": False}]
    for chosen in options:
        meeting = Meeting(2)

        def run(rank: int, meeting: Meeting = meeting, chosen: dict[str, Any] = chosen) -> list[Tensor]:
            own = sharded.heads_of(rank)
            bound = sharded.bind(model, rank, meeting.ranks[rank], **chosen)
            decoder = Decoder(sharded.attentions, bound, attended.of(slice(own.start, own.stop)))
            return [decoder.step([0, 1, 2], [5, 7, 98], [at] * 3) for at in range(2)]

        with ThreadPoolExecutor(2) as pool:
            made.append([logits for steps in pool.map(run, range(2)) for logits in steps])
    for ours in made[1:]:
        assert all(torch.equal(plain, native) for plain, native in zip(made[0], ours, strict=True))
