"""Weights on disk: whole ones load, and of the others one sentence says which file is wrong and how."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from lamina.model import CheckpointError, load_original
from lamina.model.load import MOST_HEADER_BYTES, _drawn_once, require_sound


@pytest.fixture
def folder(config: transformers.LlamaConfig, tmp_path: Path) -> Path:
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "one")
    return tmp_path / "one"


@pytest.fixture
def sharded(config: transformers.LlamaConfig, tmp_path: Path) -> Path:
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    return tmp_path / "many"


def load(folder: Path, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    return load_original(transformers.AutoConfig.from_pretrained(folder), folder, dtype, "safetensors")


def refused(folder: Path, code: str) -> None:
    with pytest.raises(CheckpointError, match=f"(?s){code}"):
        require_sound(folder)


def test_one_file_and_many_load(folder: Path, sharded: Path) -> None:
    for place in (folder, sharded):
        loaded = load(place)
        again = transformers.AutoModelForCausalLM.from_pretrained(place)
        for (name, ours), theirs in zip(loaded.named_parameters(), again.parameters(), strict=True):
            assert torch.equal(ours, theirs), name
            assert not ours.requires_grad


def test_the_requested_dtype_is_loaded(folder: Path) -> None:
    assert load(folder, torch.bfloat16).dtype == torch.bfloat16


def test_dummy_weights_are_the_same_every_time_and_leave_the_generator_alone(
    config: transformers.LlamaConfig,
) -> None:
    before = torch.random.get_rng_state()
    first, second = (load_original(config, None, torch.float32, "dummy") for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert first.lm_head.weight.std() > 0


@pytest.mark.long(but=["llama-gqa", "gpt2", "gpt-oss", "deepseek-v3"])
def test_every_family_has_all_its_dummy_weights(family: str, small_model: Callable[..., Any]) -> None:
    """Also those that the family does not draw, and torch does."""
    first, second = (
        load_original(small_model(family).config, None, torch.float32, "dummy") for _ in range(2)
    )
    for (name, ours), theirs in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.isfinite(ours).all(), name
        assert torch.equal(ours, theirs), name
        assert ours.std() > 0 or "norm" in name or "bias" in name or ours.ndim < 2, name


def test_layers_that_the_family_leaves_alone_are_drawn_as_torch_does() -> None:
    with _drawn_once() as draw_rest:
        layers = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Embedding(8, 8)])
        layers[0].weight.detach().fill_(1)
        layers[0].bias.detach().fill_(0)
    draw_rest(layers)
    assert layers[0].weight.eq(1).all()
    assert all(0 < weights.abs().max() < 9 for layer in layers[1:] for weights in layer.parameters())
    assert torch.nn.Linear(8, 8).weight.isfinite().all()


def test_no_folder_no_weights(config: transformers.LlamaConfig) -> None:
    with pytest.raises(CheckpointError, match="checkpoint-config-alone"):
        load_original(config, None, torch.float32, "safetensors")


def test_a_truncated_file_is_detected_by_its_length(folder: Path) -> None:
    shard = folder / "model.safetensors"
    whole = shard.read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        shard.write_bytes(whole[:size])
        refused(folder, "checkpoint-cut-off")
    shard.write_bytes(whole + b"!")
    refused(folder, "checkpoint-cut-off")


def edit_index(folder: Path, **places: str) -> None:
    """Say of tensors that they are in these files."""
    index = folder / "model.safetensors.index.json"
    facts = json.loads(index.read_text())
    facts["weight_map"] |= places
    index.write_text(json.dumps(facts))


def promise_another(folder: Path) -> None:
    edit_index(folder, extra=sorted(folder.glob("*.safetensors"))[0].name)


def quantise(folder: Path) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    name = next(iter(tensors))
    tensors[name] = tensors[name].to(torch.int8)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


GARBAGE = (20).to_bytes(8, "little") + b"not json at all" * 9


@pytest.mark.parametrize(
    ("kind", "damage", "code"),
    [
        ("folder", lambda at: (at / "model.safetensors").write_bytes(GARBAGE), "checkpoint-damaged"),
        (
            "sharded",
            lambda at: sorted(at.glob("*.safetensors"))[1].unlink(),
            "00002.*checkpoint-shard-missing",
        ),
        ("sharded", promise_another, "extra.*checkpoint-tensor-not-in-shard"),
        ("folder", lambda at: (at / "model.safetensors").rename(at / "a.bin"), "checkpoint-pickled"),
        ("folder", lambda at: (at / "model.safetensors").unlink(), "checkpoint-no-weights"),
        ("folder", quantise, "checkpoint-dtype"),
        ("folder", lambda at: (at / "adapter_config.json").write_text("{}"), "checkpoint-adapter"),
    ],
)
def test_unloadable_models_are_errors(
    kind: str, damage: Callable[[Path], object], code: str, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue(kind)
    damage(place)
    refused(place, code)


def test_weights_that_are_not_there_are_not_made_up(folder: Path) -> None:
    shard = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(shard)
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    safetensors.torch.save_file(tensors, shard)
    with pytest.raises(CheckpointError, match=r"(?s)up_proj.*checkpoint-weight-missing"):
        load(folder)


def test_another_models_weights_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] = 56
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="checkpoint-weight-shape"):
        load(folder)


# Which file is loaded, and that it is the one that was checked.


def test_the_single_file_is_checked_because_it_is_the_one_loaded(sharded: Path, folder: Path) -> None:
    single = sharded / "model.safetensors"
    single.write_bytes((folder / "model.safetensors").read_bytes()[:-1])
    refused(sharded, "checkpoint-cut-off")
    # A folder of that name has no weights.
    single.unlink()
    single.mkdir()
    require_sound(sharded)


def test_a_config_that_names_another_file_is_refused(sharded: Path, folder: Path) -> None:
    for place, others in (
        (folder, ["other.safetensors", "model.safetensors.index.json", "", 7]),
        (sharded, ["x"]),
    ):
        for other in others:
            config = transformers.AutoConfig.from_pretrained(place)
            config.transformers_weights = other
            with pytest.raises(CheckpointError, match=f"(?s){other!r}.*checkpoint-other-weights"):
                load_original(config, place, torch.float32, "safetensors")
    require_sound(folder, "model.safetensors")
    require_sound(sharded, "model.safetensors.index.json")


def test_links_to_shards_are_legal(sharded: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, shard in enumerate(sorted(sharded.glob("*.safetensors"))):
        shard.rename(blobs / f"{number}")
        shard.symlink_to(blobs / f"{number}")
    load(sharded)


@pytest.mark.parametrize(
    "place", ["../one/model.safetensors", "/etc/x.safetensors", "sub/a.safetensors", "a.bin", ".."]
)
def test_an_index_cannot_lead_out_of_its_folder(sharded: Path, place: str) -> None:
    edit_index(sharded, **{"lm_head.weight": place})
    refused(sharded, "checkpoint-index-damaged")


# What damage can look like.


@pytest.mark.parametrize(
    "text",
    [
        *('{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": {"a": 1}}'),
        *("{}", "7", "[]", "[" * 100_000, "{", "\x00"),
    ],
    ids=range(9),
)
def test_a_damaged_index_is_an_error(sharded: Path, text: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(text)
    refused(sharded, "checkpoint-index-damaged")


def test_an_index_that_is_a_folder_or_too_long_is_an_error(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    os.truncate(index, MOST_HEADER_BYTES + 1)
    refused(sharded, "checkpoint-index-damaged")
    index.unlink()
    index.mkdir()
    refused(sharded, "checkpoint-index-damaged")


def test_an_unreadable_file_is_an_error(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a" * 300 + ".safetensors"}}))
    refused(sharded, "checkpoint-unreadable")


def write(folder: Path, header: str | dict[str, Any], data: int) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))


def tensor(begin: Any, end: Any, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_in_any_order_and_empty_ones_are_sound(tmp_path: Path) -> None:
    write(
        tmp_path, {"b": tensor(8, 16), "a": tensor(0, 8), "e": tensor(8, 8, [0, 3]), "__metadata__": {}}, 16
    )
    require_sound(tmp_path)
    assert len(safetensors.torch.load_file(tmp_path / "model.safetensors")) == 3
    write(tmp_path, {"half": tensor(0, 6, [3], "BF16"), "scalar": tensor(6, 14, [], "F64")}, 14)
    require_sound(tmp_path)
    assert len(safetensors.torch.load_file(tmp_path / "model.safetensors")) == 2


DAMAGED = {
    "overlap": {"a": tensor(0, 8), "b": tensor(4, 12)},
    "hole": {"a": tensor(0, 8), "b": tensor(12, 20)},
    "late": {"a": tensor(4, 12)},
    "shape": {"a": tensor(0, 16)},
    "negative": {"a": tensor(-8, 0)},
    "backwards": {"a": tensor(8, 0)},
    "infinity": '{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, Infinity]}}',
    "fraction": {"a": tensor(0, 8.0)},
    "huge": {"a": tensor(0, 1 << 70, [1 << 68])},
    "too long a number": '{"a": {"dtype": "F32", "shape": [' + "9" * 5000 + "]}}",
    "true": {"a": tensor(0, 4, [True])},
    "dtype list": {"a": tensor(0, 8, dtype=["F32"])},
    "no dtype": {"a": {"shape": [2], "data_offsets": [0, 8]}},
    "no offsets": {"a": {"dtype": "F32", "shape": [2]}},
    "one offset": {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}},
    "shape number": {"a": tensor(0, 8, 2)},
    "shape text": {"a": tensor(0, 8, ["2"])},
    "tensor list": {"a": [1]},
    "list": "[]",
    "null": "null",
    "nested": "[" * 100_000,
    "latin": "\x00\xff",
}


@pytest.mark.parametrize("header", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_header_is_one_sentence(tmp_path: Path, header: str | dict[str, Any]) -> None:
    write(tmp_path, header, 8)
    refused(tmp_path, "checkpoint-damaged")


def test_a_header_longer_than_safetensors_reads_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for size in (MOST_HEADER_BYTES + 1000, 8_000_000_000_000):
        path.write_bytes((size - 8).to_bytes(8, "little"))
        try:
            os.truncate(path, size)
        except OSError:  # not every file system has files of terabytes, be they empty
            continue
        refused(tmp_path, "checkpoint-damaged")
    path.unlink()
