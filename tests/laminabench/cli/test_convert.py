"""`laminabench convert`, as a person uses it; tests/lamina/convert has the conversion itself."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from laminabench.catalog.small_models import SMALL_MODELS

pytest.importorskip("torch")
pytest.importorskip("transformers")

TINY = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 128,
    "dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model folder as Hugging Face has them, without weights."""
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


# Of these every other layer keeps state instead of attending, the first one too.
HYBRIDS = {"jamba", "qwen3-next", "granite-hybrid", "olmo-hybrid", "lfm2"}


def shorter(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """The same model, converted in less time."""
    short = dict(config) | {"n_layer" if "n_layer" in config else "num_hidden_layers": layers}
    return short | ({"layer_types": config["layer_types"][:layers]} if "layer_types" in config else {})


def shorten(monkeypatch: pytest.MonkeyPatch, names: Iterable[str], layers: int) -> None:
    short = {name: shorter(SMALL_MODELS[name], layers * (1 + (name in HYBRIDS))) for name in names}
    # This one first: it has taken the whole table when it is imported.
    monkeypatch.setattr("laminabench.conversion.source.SMALL_MODELS", short)
    monkeypatch.setattr("laminabench.catalog.small_models.SMALL_MODELS", short)


@pytest.mark.long
def test_every_family_has_a_row(as_json: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, SMALL_MODELS, 1)
    table = {row["family"]: row for row in as_json("convert", "--families")["families"]}
    assert set(table) == set(SMALL_MODELS)
    assert all(row["transfer_agrees"] and row["slices"] == 2 for row in table.values())
    # q is sent before k and v are computed everywhere, fused projections included. Where KV is latent, q
    # takes two products and one with the keys' half of kv_b_proj, and what is stored takes one.
    # Layers that keep state are computed before q of the attention behind them.
    latent = {name for name, config in SMALL_MODELS.items() if "kv_lora_rank" in config}
    before = {name: (row["products"]["query"], row["products"]["keyvalue"]) for name, row in table.items()}
    hybrid = {name: before.pop(name) for name in HYBRIDS}
    assert before == {name: (3, 1) if name in latent else (1, 2) for name in before}
    assert all(query > 1 and keyvalue == 2 for query, keyvalue in hybrid.values())
    assert {name for name, row in table.items() if row["state_bytes"]} == HYBRIDS
    # Cohere's MLP does not need attention: all of it overlaps; of Qwen3-Next's, what its output is gated by.
    assert {name for name, row in table.items() if row["products"]["rest"]} == {"cohere", "qwen3-next"}


def test_the_docs_name_every_family() -> None:
    page = (Path(__file__).parents[3] / "docs/converter.md").read_text(encoding="utf-8")
    listed = page.partition("## Families\n")[2].split("\n\n")[1]
    assert re.findall("`(.+?)`", listed) == list(SMALL_MODELS)


def test_families_as_a_table(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, ["opt", "cohere"], 2)
    code, out, err = shell("convert", "--families", "-q")  # what it says after ten seconds aside
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[2:4]}
    assert rows == {
        "opt": ["3", "3", "1,024", "4", "2", "0", "4,096", "agrees", "0"],
        "cohere": ["3", "3", "2,304", "2", "2", "3", "2,560", "agrees", "0"],
    }
    assert max(map(len, out.splitlines())) <= 120


def test_instructions_and_source_on_request(printed: Any, tiny: Path) -> None:
    out = printed("convert", str(tiny / "config.json"), "-v", "--source", "--slice", "1")
    assert "Slice 1 (class 1), all instructions" in out
    assert "linear_1 = linear(reshape_1, model.layers.0.self_attn.o_proj.weight) bfloat16[B, 1, 64]" in out
    assert "# class 1: slices 1" in out
    assert "def keyvalue(state):" in out
    assert "# class 0" not in out


def test_json_has_everything(as_json: Any, tiny: Path) -> None:
    facts = as_json("convert", str(tiny), "--dtype", "float32", "--rope", "recompute")
    assert (facts["layers"], facts["dtype"]) == (2, "float32")
    assert (facts["rope"], facts["origin"]) == ("recompute", "config")
    assert facts["assumed"] == []
    assert facts["transfer_agrees"]
    assert facts["transfer"][1] == {
        "layer": 1, "q_bytes": 256, "k_bytes": 64, "v_bytes": 64, "attended_bytes": 256, "bytes": 640,
        "formula": "(2 + 2/4) x 4 x 64", "formula_bytes": 640.0, "agrees": True,
    }  # fmt: skip
    # Nothing but the residual is carried: the tables are made in each slice.
    assert facts["context_bytes"] == 256
    assert [part["name"] for part in facts["slices"][1]["parts"]] == ["query", "keyvalue", "rest"]
    assert "def query(" in facts["classes"][0]["source"]
    product = facts["slices"][0]["products"][0]["products"][0]
    assert (product["name"], product["shape"], product["weight_bytes"]) == ("q_proj", [64, 64], 16384)


def test_the_catalogue_says_what_it_does_not_know(
    printed: Any, as_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from laminabench.catalog.find_model import to_hf_config

    monkeypatch.setattr(
        "laminabench.conversion.source.to_hf_config", lambda name: shorter(to_hf_config(name), 2)
    )
    facts = as_json("convert", "Llama3-70B")
    assert facts["model"] == "llama3-70b"
    assert facts["transfer"][0]["bytes"] == 36864
    assert facts["context_bytes"] == 16384 + 2 * 256
    assert facts["max_positions"] is None
    out = printed("convert", "opt-13b")
    assert "shapes from the catalogue: config.json of facebook/opt-13b; by transformers' defaults:" in out


@pytest.mark.parametrize("name", ["llama3-8b", "opt-13b", "qwen2.5-0.5b", "qwen3-0.6b", "mistral-7b"])
def test_catalogue_configs_build_models_of_the_published_size(name: str) -> None:
    import torch
    import transformers

    from laminabench.catalog.families import load_models
    from laminabench.catalog.find_model import to_hf_config

    config = transformers.AutoConfig.for_model(**to_hf_config(name))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(weight.numel() for weight in model.parameters()) == load_models()[name].parameters


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_a_picture_of_each_kind(shell: Any, tiny: Path, suffix: str) -> None:
    target = Path("pictures", f"slice{suffix}")
    code, _, err = shell("convert", str(tiny), "--graph", str(target))
    assert code == 0
    assert f"drew slice 1 into {target}" in err
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    kinds = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert target.read_bytes().startswith(kinds[suffix])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lama3-70b"], "did you mean llama3-70b"),
        (["no-such-file.json"], "[convert-unreadable]"),
        (["broken.json"], "[convert-config-not-json]"),
        (["bloom.json"], "[convert-alibi]"),
        (["unknown.json"], "[convert-model-type-unknown]"),
        ([], "give a MODEL, or --families"),
        (["llama", "--families"], "give a MODEL, or --families"),
        (["--families", "--source"], "are for one MODEL"),
        (["tiny-llama", "--slice", "3"], "[convert-slice-unknown]"),
        (["tiny-llama", "--graph", "slice.bmp"], "cannot draw slice.bmp: give it one of the suffixes .svg"),
        (["tiny-llama", "--graph", "tiny-llama.svg"], "it exists and is not a file"),
        (["tiny-llama", "--dtype", "int8"], "bfloat16"),
    ],
)
@pytest.mark.usefixtures("tiny")
def test_wrong_use_is_one_sentence_and_exit_2(refused: Any, arguments: list[str], message: str) -> None:
    Path("broken.json").write_text("{")
    Path("bloom.json").write_text(json.dumps({"model_type": "bloom"}))
    Path("unknown.json").write_text(json.dumps({"model_type": "nonesuch"}))
    Path("tiny-llama.svg").mkdir()
    before = sorted(path.name for path in Path().iterdir())
    refused(message, "convert", *arguments, "-v")
    assert sorted(path.name for path in Path().iterdir()) == before


def test_bytes_that_are_not_the_formulas_fail_the_check(
    shell: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules["laminabench.conversion.products"].ELEMENT_BYTES, "bfloat16", 4)
    code, out, err = shell("convert", str(tiny))
    assert code == 1
    assert "differs" in out
    assert "check failed: layer 0 moves 320 bytes a token where (2 + 2/G) e d is 640" in err


def test_without_torch_it_says_what_to_install(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "laminabench.conversion.report", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    refused("pip install 'laminabench[engine]'", "convert", "llama")
