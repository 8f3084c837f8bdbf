"""Parameter counts are the published ones; bytes are the papers'."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from laminabench.catalog.families import load_models
from laminabench.catalog.find_model import from_config_json, model, modelled, to_hf_config
from laminabench.catalog.hardware import device
from laminabench.catalog.layout import Layout
from laminabench.util.errors import UserError

# Published with the checkpoints (model card or safetensors index); entered by hand.
PUBLISHED_PARAMETERS = {
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "opt-13b": 12_853_473_280,
}


def test_parameters_are_the_published_count_or_as_in_their_names():
    assert {name: model(name).parameters for name in PUBLISHED_PARAMETERS} == PUBLISHED_PARAMETERS
    for name in ("opt-30b", "opt-66b", "opt-175b", "qwen3-1.7b", "qwen3-4b"):
        billion = float(name.split("-")[1].removesuffix("b"))
        assert model(name).parameters == pytest.approx(billion * 1e9, rel=0.02)


@pytest.mark.parametrize(
    ("name", "billion", "active"),
    [  # as their model cards round them; of gpt-oss without the embedding, Llama-4 without its vision part
        ("mixtral-8x7b", 46.7, 12.9),
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("qwen3-235b-a22b", 235, 22),
        ("gpt-oss-20b", 20.91, 3.61),
        ("gpt-oss-120b", 116.83, 5.13),
        ("llama4-scout", 109, 17),
        ("llama4-maverick", 400, 17),
        ("glm-4.5-air", 106, 12),
        ("minimax-m2.5", 230, 10),
        ("deepseek-v3", 671, 37),
        ("kimi-k2", 1026, 32),
        ("kimi-k2.5", 1026, 32),
    ],
)
def test_mixtures_of_experts_have_the_parameters_of_their_cards(name, billion, active):
    shape = model(name)
    without = shape.vocab * shape.hidden * name.startswith("gpt-oss")
    assert shape.parameters == pytest.approx(billion * 1e9, rel=0.013)
    # Cards round what is active, and some leave an embedding out.
    embedding = shape.vocab * shape.hidden
    assert active * 0.97 <= (shape.active_parameters - without) / 1e9 <= active * 1.07 + embedding / 1e9


def test_experts_are_split_or_distributed():
    deepseek = model("deepseek-v3")
    whole = deepseek.weights().experts
    assert whole == 58 * 256 * 3 * 7168 * 2048
    distributed = deepseek.weight_bytes_per_worker(Layout(1, dp=8, ep=8))
    split = deepseek.weight_bytes_per_worker(8)
    # What differs is attention, dense layers, shared experts and embeddings, which data parallelism copies.
    assert split == deepseek.weight_bytes_per_worker(Layout(8, ep=8))
    rest = deepseek.weight_bytes - whole - split + whole / 8
    assert distributed == pytest.approx(whole / 8 + deepseek.weight_bytes - whole)
    assert 0.8 * 7 / 8 < rest / (deepseek.weight_bytes - whole) < 7 / 8


def test_latent_attention_stores_one_vector_which_every_tensor_parallel_worker_has():
    deepseek = model("deepseek-v3")
    assert deepseek.kv_bytes_per_token == 61 * 576 * 2
    assert deepseek.kv_share(8) == deepseek.kv_share(1) == 1
    assert model("llama3-70b").kv_share(4) == 0.25
    shapes = {product.gemm.name: (*product.gemm[1:], product.heads) for product in deepseek.products(8)}
    assert shapes["qkv_a"] == (2112, 7168, 0)
    assert shapes["q_b"] == (3072, 1536, 0)
    assert shapes["absorb"] == (512, 128, 16)
    assert shapes["expand"] == (128, 512, 16)
    assert shapes["o"] == (7168, 2048, 0)
    assert (deepseek.query_size, deepseek.output_size) == (128 * 576, 128 * 512)


def test_windows_give_back_what_they_no_longer_look_at():
    result = model("gpt-oss-120b")
    assert result.kv_bytes_per_token == 18 * 2 * 8 * 64 * 2
    assert result.kv_tokens_per_request == 128
    # Of 8192 tokens: counted as if it kept them.
    assert model("llama4-scout").kv_bytes_per_token == 48 * 2 * 8 * 128 * 2
    assert model("llama4-scout").kv_tokens_per_request == 0


def test_layouts_that_a_model_can_have():
    assert set(map(str, model("qwen3-235b-a22b").layouts(8))) >= {"tp8ep8", "dp8ep8", "tp4dp2ep8"}
    # Blocks of 128 do not divide further.
    assert "tp8" not in map(str, model("qwen3-235b-a22b").layouts(8))
    assert list(map(str, model("llama3-70b").layouts(4))) == ["tp4", "tp2pp2", "pp4"]
    assert all(layout.tp <= 8 for layout in model("deepseek-v3").layouts(32))
    with pytest.raises(UserError, match="model-cannot-split"):
        model("qwen3-235b-a22b").products(8)


def test_gpt3_has_the_parameters_of_its_paper_s_table():
    # Brown et al. 2020, Table D.1: 174,600 M.
    assert round(model("gpt3-175b").parameters / 1e6, -2) == 174_600


def test_chinchilla_is_a_70b_model_only_with_the_matrices_for_relative_positions():
    shape = model("chinchilla-70b")
    assert shape.parameters == pytest.approx(70e9, rel=0.002)
    absolute = replace(shape, relative_positions=False)
    assert shape.parameters - absolute.parameters == 80 * 8192 * 8192
    # No step multiplies by them.
    assert shape.layer_gemms(1) == absolute.layer_gemms(1)


def test_the_papers_weights_are_the_layers_and_one_32k_vocabulary():
    v2_table_3, v1_table_4 = {"llama-33b": 64.7, "llama-65b": 130.1, "llama3-70b": 137.5}, {"llama-13b": 25.7}
    # The residue, up to 0.07 GB, is in the papers: v1 has 64.6 GB for 33B.
    for name, published_gb in {**v2_table_3, **v1_table_4}.items():
        assert model(name).table3_bytes / 1e9 == pytest.approx(published_gb, abs=0.075)


def test_an_h100_holds_about_30_requests_of_8192_tokens():
    # v2 section 2.2.2, on LLaMA3-70B, all 80e9 bytes used for KV.
    stored = device("h100").memory_bytes / (8192 * model("llama3-70b").kv_bytes_per_token)
    assert 29 < stored < 30


def test_bytes_by_hand():
    assert model("llama3-70b").weight_bytes / 1e9 == pytest.approx(141.1, abs=0.05)  # v2 Table 3 says less
    assert model("llama3-70b").kv_bytes_per_token == 2 * 80 * 8 * 128 * 2
    assert model("llama-65b").kv_bytes_per_token == 8 * model("llama3-70b").kv_bytes_per_token
    assert model("llama-33b").group == 1
    assert model("llama3-70b").group == 8


def test_gemm_shapes_of_a_tensor_parallel_layer():
    shapes = {gemm.name: (gemm.n, gemm.k) for gemm in model("llama3-70b").layer_gemms(4)}
    assert shapes == {"qkv": (2560, 8192), "o": (8192, 2048), "gate_up": (14336, 8192), "down": (8192, 7168)}
    assert model("llama3-70b").lm_head_gemm(4)[1:] == (32064, 8192)
    opt = {gemm.name: (gemm.n, gemm.k) for gemm in model("opt-175b").layer_gemms(8)}
    assert opt == {"qkv": (4608, 12288), "o": (12288, 1536), "fc1": (6144, 12288), "fc2": (12288, 6144)}


def test_element_wise_work_by_hand():
    # Norms 4d, add 3d, activation 3f, rotation 2(q + k); norm, norm, add, activation, rotation.
    assert model("llama3-70b").elementwise(1) == (5, 7 * 8192 + 3 * 28672 + 2 * (8192 + 1024))
    assert model("llama3-70b").elementwise(8) == (5, 7 * 8192 + 3 * 3584 + 2 * (1024 + 128))
    assert model("opt-13b").elementwise(1) == (4, 7 * 5120 + 2 * 20480)
    assert model("qwen3-8b").elementwise(1) == (6, 7 * 4096 + 3 * 12288 + 4 * (4096 + 1024))


def test_kv_heads_are_copied_where_they_are_fewer_than_workers():
    assert model("llama3-70b").layer_gemms(16)[0].n == (4 + 2) * 128
    assert model("qwen2.5-1.5b").layer_gemms(4)[0].n == (3 + 2) * 128


def test_shards_add_up_to_the_model():
    for shape in (each for each in load_models().values() if not each.experts):
        whole = sum(gemm.n * gemm.k for gemm in shape.layer_gemms(1))
        for tp in shape.tp_degrees(16):
            shards = tp * sum(gemm.n * gemm.k for gemm in shape.layer_gemms(tp))
            assert shards == whole if shape.kv_heads % tp == 0 else shards >= whole
            assert shape.weight_bytes_per_worker(tp) * tp >= shape.weight_bytes * 0.999
        assert shape.weight_bytes_per_worker(1) == shape.weight_bytes
        assert shape.describe()["parameters"] == shape.parameters


def test_legal_splits():
    assert model("llama-33b").head_splits() == (1, 2, 4, 13, 26, 52)
    assert model("llama3-70b").head_splits() == (1, 2, 4, 8)
    assert model("llama-33b").tp_degrees(16) == (1, 2, 4)
    with pytest.raises(UserError, match="model-cannot-split"):
        model("llama-33b").layer_gemms(8)


LLAMA3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def _write(tmp_path, **changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA3_8B, **changes}))
    return path


def test_a_config_json_gives_the_catalogue_s_model(tmp_path):
    read = from_config_json(_write(tmp_path))
    assert read.parameters == model("llama3-8b").parameters
    assert read.layer_gemms(2) == model("llama3-8b").layer_gemms(2)
    assert model(str(tmp_path)) == model(str(tmp_path / "config.json")) == read
    # Absent key-value heads mean one for every head.
    assert from_config_json(_write(tmp_path, num_key_value_heads=None)).kv_heads == 32


@pytest.mark.parametrize(
    ("name", "sizes", "more"),
    [
        # Its own head size, and norms of queries and keys.
        ("qwen3-0.6b", (1024, 28, 16, 151936), {"head_dim": 128, "tie_word_embeddings": True}),
        ("opt-13b", (5120, 40, 40, 50272), {"ffn_dim": 20480, "max_position_embeddings": 2048}),
    ],
)
def test_a_config_json_of_another_family(tmp_path, name, sizes, more):
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    family = name.split("-")[0]
    changes = dict(zip(names, sizes, strict=True)) | more | {"model_type": family, "torch_dtype": "float16"}
    read = from_config_json(_write(tmp_path, intermediate_size=3072, **changes))
    assert (read.parameters, read.dtype) == (model(name).parameters, "fp16")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model_type": "mamba"}, "model-family-unsupported"),
        ({"model_type": None}, "model-family-unsupported"),
        ({"hidden_size": "4096"}, "model-config-bad-size"),
        ({"num_hidden_layers": 0}, "model-config-bad-size"),
        ({"num_key_value_heads": 5}, "model-heads-uneven"),
        ({"torch_dtype": "int4"}, "model-config-unsupported"),
        ({"quantization_config": {"bits": 4}}, "model-config-unsupported"),
    ],
)
def test_a_config_that_cannot_be_modelled_is_refused(tmp_path, changes, code):
    with pytest.raises(UserError, match=code):
        from_config_json(_write(tmp_path, **changes))


def test_a_file_that_is_not_a_config_is_refused(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(UserError, match="model-config-unreadable"):
        from_config_json(path)
    for text in ("{", "[]"):
        path.write_text(text)
        with pytest.raises(UserError, match="model-config-not-json"):
            from_config_json(path)


def test_a_modelled_model_may_have_another_type():
    plain, narrow = modelled("llama3-70b"), modelled("LLaMA3-70B@FP8")
    assert narrow.name == "llama3-70b@fp8"
    assert narrow.weight_bytes * 2 == plain.weight_bytes == 2 * plain.parameters
    assert narrow.kv_bytes_per_token * 2 == plain.kv_bytes_per_token


@pytest.mark.parametrize(
    ("find", "name", "code"),
    [
        (model, "lama3-70b", "catalogue-unknown-name"),
        (modelled, "llama3-70b@fp9", "catalogue-unknown-name"),
        (modelled, "lama3-70b@fp8", "catalogue-unknown-name"),
        (model, "llama3-8b@fp8", "catalogue-unknown-name"),  # what has to run has no other type
        (to_hf_config, "gpt3-175b", "model-never-released"),
        (to_hf_config, "chinchilla-70b", "model-never-released"),
    ],
)
def test_a_name_of_nothing_that_is_there_is_refused(find, name, code):
    with pytest.raises(UserError, match=code):
        find(name)


def test_a_config_json_may_have_another_type(tmp_path):
    path = _write(tmp_path)
    assert modelled(f"{path}@int8").dtype == "int8"
    assert modelled(str(path)) == model(str(path))


def test_the_small_models_for_live_replays():
    mini, tiny = model("llama-mini"), model("llama-tiny")
    assert mini.parameters == pytest.approx(246e6, rel=0.005)
    assert tiny.parameters < 4e6
    config = to_hf_config("llama-mini", 65536)
    # What `bench engine` measures, and no token is special in it.
    sizes = (1024, 2816, 16, 16, 4, 32000, 65536)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names = (*names, "num_key_value_heads", "vocab_size", "max_position_embeddings")
    assert tuple(config[name] for name in names) == sizes
    assert not config["tie_word_embeddings"]
    assert config["eos_token_id"] is None
    assert "max_position_embeddings" not in to_hf_config("llama-mini")
    # Learned positions are rows of a table: there are as many as there are.
    assert to_hf_config("opt-30b", 65536)["max_position_embeddings"] == 2048
