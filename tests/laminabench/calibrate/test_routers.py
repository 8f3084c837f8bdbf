"""A checkpoint's routers as a routing file: its curve is what counting the router's choices gives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tiny_models import DEEPSEEK, seeded, tiny

from laminabench.calibrate.routers import LONGEST, read_sequences, routed
from laminabench.catalog.routing import counted, read_routing
from laminabench.cli.main import main
from laminabench.util.errors import UserError

EXPERTS, TOP_K = 8, 2
SEQUENCES = [list(range(start, start + 20)) for start in (3, 30, 57)]
PROMPTS = "".join(f"{' '.join(map(str, each))}\n" for each in SEQUENCES)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny-moe")
    sizes = {"num_experts": EXPERTS, "num_experts_per_tok": TOP_K, "moe_intermediate_size": 32}
    seeded(tiny("Qwen3Moe", num_hidden_layers=3, **sizes)).save_pretrained(folder, max_shard_size="30KB")
    return folder


@pytest.fixture(scope="module")
def direct(checkpoint):
    """The experts of each token by layer, from the logits that the model itself returns."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    with torch.inference_mode():
        outputs = [model(torch.tensor([each]), output_router_logits=True) for each in SEQUENCES]
    by_layer = zip(*(each.router_logits for each in outputs), strict=True)
    return [torch.cat(logits).topk(TOP_K).indices.sort().values.numpy() for logits in by_layer]


def test_the_files_curve_is_a_direct_count(checkpoint, direct, tmp_path):
    prompts, target = tmp_path / "ids.txt", tmp_path / "routing.csv"
    prompts.write_text(PROMPTS)
    words = ["costs", "routing", str(checkpoint), str(prompts), "--token-ids", "-o", str(target), "--json"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    facts, curve = json.loads(result.stdout), read_routing(target)
    assert (facts["layers"], facts["experts"], facts["top_k"], facts["tokens"]) == (3, EXPERTS, TOP_K, 60)
    assert facts["tokens_by_expert"] == [
        [int((layer == expert).sum()) for expert in range(EXPERTS)] for layer in direct
    ]
    for ranks in (1, 2, 4, 8):
        local = EXPERTS // ranks
        alone, together = [], []
        for layer in direct:
            # A token alone, and all of them: what order they are drawn in makes no difference.
            for token in layer:
                on = [[e for e in token if e // local == rank] for rank in range(ranks)]
                busiest = max(on, key=len)
                alone.append((len(set(busiest)), len(busiest)))
            on = [[e for e in layer.ravel() if e // local == rank] for rank in range(ranks)]
            busiest = max(on, key=len)
            together.append((len(set(busiest)), len(busiest)))
        load = curve.load(EXPERTS, TOP_K, ranks, [1, 60])
        for at, expected in enumerate((alone, together)):
            active, pairs = np.mean(expected, axis=0)
            assert load.active[at] == pytest.approx(active, rel=1e-3)
            assert load.pairs[at] == pytest.approx(pairs, rel=1e-3)


def test_first_layers_need_no_later_files(checkpoint, direct, tmp_path):
    part = tmp_path / "part"
    shutil.copytree(checkpoint, part)
    places = json.loads((part / "model.safetensors.index.json").read_text())["weight_map"]
    needed = {file for name, file in places.items() if "layers.1." not in name and "layers.2." not in name}
    for file in set(places.values()) - needed:
        (part / file).unlink()
    with pytest.raises(UserError) as failed:
        routed(part, SEQUENCES)
    assert failed.value.code == "checkpoint-shard-missing"
    [first] = routed(part, SEQUENCES, layers=1).chosen
    assert np.sort(first).tolist() == direct[0].tolist()


def test_an_index_with_a_layer_of_too_many_digits_is_refused(checkpoint, tmp_path):
    damaged = shutil.copytree(checkpoint, tmp_path / "damaged")
    index = json.loads((damaged / "model.safetensors.index.json").read_text())
    index["weight_map"][f"model.layers.{'9' * 5000}.x"] = next(iter(index["weight_map"].values()))
    (damaged / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError) as failed:
        routed(damaged, SEQUENCES, layers=1)
    assert failed.value.code == "checkpoint-tensor-not-in-shard"


def test_dense_layers_have_no_router(tmp_path):
    seeded(tiny("DeepseekV3", **DEEPSEEK)).save_pretrained(tmp_path)
    [second] = routed(tmp_path, [[1, 2, 3]]).chosen
    assert second.shape == (3, 2)
    with pytest.raises(UserError) as failed:
        routed(tmp_path, [[1, 2, 3]], layers=1)
    assert failed.value.code == "routing-no-router"


def test_a_config_that_loads_and_does_not_run_is_refused(checkpoint, tmp_path):
    damaged = shutil.copytree(checkpoint, tmp_path / "damaged")
    config = json.loads((damaged / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps({**config, "num_experts_per_tok": -1}))
    with pytest.raises(UserError, match=r"compare config\.json") as failed:
        routed(damaged, SEQUENCES)
    assert failed.value.code == "routing-model-fails"


@pytest.mark.parametrize(
    ("text", "flags", "code"),
    [
        ("1 x\n", ["--token-ids"], "routing-bad-prompts"),
        ("\n", ["--token-ids"], "routing-bad-prompts"),
        ("1 99\n", ["--token-ids"], "routing-bad-prompts"),
        ("Hello\n", [], "tokenizer-missing"),
    ],
)
def test_prompts_that_cannot_be_run_are_refused(text, flags, code, checkpoint, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(text)
    words = ["costs", "routing", str(checkpoint), str(prompts), *flags, "-o", str(tmp_path / "r.csv")]
    assert CliRunner().invoke(main, words).exception.code == code


def test_sequences_are_cut_to_the_tokens_asked_for(tmp_path):
    prompts = tmp_path / "ids.txt"
    prompts.write_text(f"{'1 ' * (LONGEST + 5)}\n2, 3, 4\n")
    taken = read_sequences(Path("unused"), prompts, LONGEST + 7, token_ids=True)
    assert [len(each) for each in taken] == [LONGEST, 5, 2]


def test_a_curve_is_of_random_steps_and_repeatable():
    """Neighbours choose the same experts: a step of random tokens activates more than one in order."""
    chosen = np.repeat(np.arange(EXPERTS), 100)[:, None]
    curve = counted([chosen], EXPERTS)
    assert curve == counted([chosen], EXPERTS)
    assert float(curve.load(EXPERTS, 1, 1, 8).active) == pytest.approx(8 * (1 - (7 / 8) ** 8), rel=0.05)
