"""Conversions on disk: the same ones again, and nothing else whatever lies there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tiny_models import DEEPSEEK, custom, decodes, seeded, tiny
from transformers.models.llama import modeling_llama

from lamina.convert import conversion as conversion_module
from lamina.convert import convert, cut, disk_cache, stored
from lamina.convert.source import open_source

Change = Callable[[Any], None]
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Phi3": {},
    "GPTNeoX": {},
    "Gemma2": {"head_dim": 16},
    "GptOss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": DEEPSEEK,
    "GraniteMoeHybrid": {
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv(disk_cache.SWITCH, raising=False)
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path))
    return tmp_path / "conversions"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process knows is forgotten before each conversion."""

    class Nothing(dict[Any, Any]):
        def get(self, *_: Any) -> None:
            return None

    monkeypatch.setattr(conversion_module, "_memory_cache", Nothing())
    monkeypatch.setattr(cut, "_graph", {})


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.mark.long(but=["DeepseekV3", "GraniteMoeHybrid"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_kept_decodes_as_the_model_does(family: str, folder: Path, traced: list[Any]) -> None:
    model = seeded(tiny(family, **FAMILIES[family]))
    first = convert(model)
    assert (first.known, len(files(folder))) == (False, 1)
    again = convert(model)
    assert (again.known, len(traced)) == (True, 1)
    assert [kind.source for kind in again.classes] == [kind.source for kind in first.classes]
    assert stored.to_plain(again) == stored.to_plain(first)
    decodes(model, again, by_token=bool(again.states))


def test_what_decides_is_in_the_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("Llama", num_hidden_layers=1)
    convert(config, torch.float32)
    convert(config, torch.bfloat16)
    convert(config, torch.float32, rope="recompute")
    convert(tiny("Llama", num_hidden_layers=1, attention_bias=True), torch.float32)
    monkeypatch.setattr(disk_cache, "_code_of_converter", lambda: "another")
    convert(config, torch.float32)
    assert len(files(folder)) == 5
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files(folder))


def test_it_can_be_turned_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("Llama", num_hidden_layers=1)
    convert(config, keep=False)
    assert files(folder) == []
    convert(config)
    assert not convert(config, keep=False).known
    monkeypatch.setenv(disk_cache.SWITCH, "off")
    assert not convert(config).known
    assert len(files(folder)) == 1


def signed(text: bytes) -> bytes:
    return disk_cache._MAGIC + hashlib.sha256(text).digest() + text


def forged(change: Change) -> Callable[[bytes], bytes]:
    """A file with other content, whose checksum is right."""

    def write(data: bytes) -> bytes:
        plain = msgspec.msgpack.decode(data[len(disk_cache._MAGIC) + 32 :])
        change(plain)
        return signed(msgspec.msgpack.encode(plain))

    return write


def rename(plain: Any) -> None:
    plain["classes"][0][0]["pieces"][0][1][0][0] = "x; import os; y"


def call(operator: str) -> Change:
    def change(plain: Any) -> None:
        plain["classes"][0][0]["pieces"][0][1][0][1] = operator

    return change


def formula(plain: Any) -> None:
    plain["classes"][0][0]["context"][0][1][0] = ["__import__('os').getpid()"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a conversion."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(disk_cache.SWITCH, raising=False)
        patch.setenv("LAMINABENCH_HOME", str(home))
        patch.setattr(conversion_module, "_memory_cache", {})
        convert(tiny("Llama", num_hidden_layers=1))
    (path,) = files(home / "conversions")
    return path.read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda _: b"",
        lambda _: signed(b"\xc1"),
        lambda _: signed(msgspec.msgpack.encode({"classes": []})),
        forged(rename),
        forged(call("os.system")),
        forged(call("aten.from_file.default")),
        forged(call("prims.add.default")),
        forged(formula),
        forged(lambda plain: plain["slices"].pop()),
    ],
    ids=["half", "bit", "empty", "no-message", "less", "name", "os", "file", "space", "formula", "slice"],
)
def test_what_is_wrong_is_not_taken(damage: Callable[[bytes], bytes], whole: bytes, folder: Path) -> None:
    source = open_source(tiny("Llama", num_hidden_layers=1), None)
    path = disk_cache._path(source, "carry", "model")
    assert path
    path.parent.mkdir()
    path.write_bytes(whole)
    assert disk_cache.load(source, "carry", "model")
    path.write_bytes(damage(whole))
    assert disk_cache.load(source, "carry", "model") is None
    assert files(folder) == [], "it is made anew"


def test_what_others_can_write_is_not_taken(folder: Path) -> None:
    config = tiny("Llama", num_hidden_layers=1)
    convert(config)
    (path,) = files(folder)
    for place, mode in ((path, 0o660), (folder, 0o777)):
        before = place.stat().st_mode
        place.chmod(mode)
        assert not convert(config).known
        place.chmod(before)
        assert convert(config).known
    link = folder / "elsewhere"
    path.rename(link)
    path.symlink_to(link)
    assert convert(config).known, "where it leads to is a file of ours, too"


def test_old_ones_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(tiny("Llama", num_hidden_layers=1))
    (path,) = files(folder)
    os.utime(path, (1, 1))
    monkeypatch.setattr(disk_cache, "MOST_BYTES", path.stat().st_size + 100)
    convert(tiny("Llama", num_hidden_layers=1, vocab_size=98))
    assert len(files(folder)) == 1
    assert path not in files(folder)


def test_code_that_was_replaced_in_this_process_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is what was kept taken for it."""
    config = tiny("Llama", num_hidden_layers=1)
    convert(config)
    rotate = modeling_llama.apply_rotary_pos_emb

    def another(*given: Any, **named: Any) -> Any:
        return rotate(*given, **named)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", another)
    assert not convert(config).known
    assert len(files(folder)) == 1


def test_classes_of_others_are_not_kept(folder: Path) -> None:
    decodes(custom(lambda up, _: up))
    assert files(folder) == []


def test_a_folder_that_cannot_be_written_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("LAMINABENCH_HOME", str(file))
    assert not convert(tiny("Llama", num_hidden_layers=1)).known
