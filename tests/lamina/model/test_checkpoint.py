"""Weights on disk: whole ones load, and of the others one sentence says which file is wrong and how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers

from lamina.model import CheckpointError, load_original
from lamina.model.checkpoint import require_sound

CONFIG = transformers.LlamaConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=64,
    max_position_embeddings=128,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = transformers.LlamaForCausalLM(CONFIG)
    model.save_pretrained(tmp_path / "one")
    return tmp_path / "one"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    model = transformers.LlamaForCausalLM(CONFIG)
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    return tmp_path / "many"


def load(folder: Path, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    return load_original(transformers.AutoConfig.from_pretrained(folder), folder, dtype, "safetensors")


def test_one_file_and_many_load(folder: Path, sharded: Path) -> None:
    for place in (folder, sharded):
        loaded = load(place)
        again = transformers.AutoModelForCausalLM.from_pretrained(place)
        for (name, ours), theirs in zip(loaded.named_parameters(), again.parameters(), strict=True):
            assert torch.equal(ours, theirs), name
            assert not ours.requires_grad


def test_the_dtype_asked_for_is_loaded(folder: Path) -> None:
    assert load(folder, torch.bfloat16).dtype == torch.bfloat16


def test_dummy_weights_are_the_same_every_time_and_leave_the_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, second = (load_original(CONFIG, None, torch.float32, "dummy") for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert first.lm_head.weight.std() > 0


def test_no_folder_no_weights() -> None:
    with pytest.raises(CheckpointError, match="a config alone has no weights"):
        load_original(CONFIG, None, torch.float32, "safetensors")


def test_a_cut_off_file_is_told_by_its_length(folder: Path) -> None:
    shard = folder / "model.safetensors"
    whole = shard.read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        shard.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"model.safetensors: (has [\d,]+ bytes of|is cut off)"):
            require_sound(folder)
    shard.write_bytes(whole + b"!")
    with pytest.raises(CheckpointError, match="cut off or damaged"):
        require_sound(folder)


def test_garbage_is_no_safetensors_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((20).to_bytes(8, "little") + b"not json at all" * 9)
    with pytest.raises(CheckpointError, match="is no safetensors file"):
        require_sound(folder)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    victim = sorted(sharded.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(CheckpointError, match=f"{victim.name} is missing"):
        require_sound(sharded)


def test_a_tensor_the_index_promises_must_be_there(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    facts = json.loads(index.read_text())
    facts["weight_map"]["model.extra"] = next(iter(facts["weight_map"].values()))
    index.write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match=r"has no tensor 'model\.extra'"):
        require_sound(sharded)
    index.write_text("[]")
    with pytest.raises(CheckpointError, match="is no index of safetensors"):
        require_sound(sharded)


def test_pickles_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickled weights can run code"):
        require_sound(folder)


def test_an_empty_folder_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors"):
        require_sound(tmp_path)


def test_quantised_weights_are_refused(folder: Path) -> None:
    shard = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(shard)
    name = next(iter(tensors))
    tensors[name] = tensors[name].to(torch.int8)
    safetensors.torch.save_file(tensors, shard)
    with pytest.raises(CheckpointError, match="is I8; weights must be"):
        require_sound(folder)


def test_weights_that_are_not_there_are_not_made_up(folder: Path) -> None:
    shard = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(shard)
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    safetensors.torch.save_file(tensors, shard)
    with pytest.raises(CheckpointError, match=r"no weights for 'model\..*\.up_proj\.weight' \(1 missing\)"):
        load(folder)


def test_another_models_weights_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] = 56
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="has another shape"):
        load(folder)
