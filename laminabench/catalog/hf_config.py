"""A Hugging Face config.json: keys of each family for a model's shape, read and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from laminabench.catalog.families import FAMILIES, Fields
from laminabench.catalog.hf_quantization import KEY as QUANTIZATION
from laminabench.catalog.hf_quantization import Quantized, read_quantization
from laminabench.catalog.model_parts import Experts, Latent, Window
from laminabench.catalog.models import ModelShape
from laminabench.util.errors import UserError
from laminabench.util.json import Json

_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8_e4m3fn": "fp8"}

_WRITTEN = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

# Of `layer_types`: the key of its window's size.
_KINDS = {
    "full_attention": "",
    "sliding_attention": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}

# OPT's table has two more rows than positions: transformers offsets them by the padding token.
_OPT_OFFSET = 2


@dataclass(frozen=True)
class Config:
    """A config.json, and the UserErrors of what it lacks."""

    path: object
    keys: Mapping[str, Any]

    def get(self, key: str) -> Any:
        return self.keys.get(key)

    def size(self, key: str, absent: int | None = None, least: int = 1) -> int:
        value = self.keys.get(key)
        if value is None and absent is not None:
            return absent
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(
                "model-config-bad-size",
                f"{self.path}: {key} is {value!r}; expected a whole number of at least {least}",
            )
        return value

    def integers(self, key: str) -> list[int]:
        value = self.keys.get(key) or []
        if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
            self.refuse(key, "is not a list of whole numbers")
        return value

    def refuse(self, key: str, why: str) -> NoReturn:
        raise UserError("model-config-unsupported", f"{self.path}: {key} {why}")


_MOST_LAYERS = 10_000
# Which layers have a window where `layer_types` does not say.
Windowed = Callable[[Config, int], list[bool]]


def _all(_: Config, layers: int) -> list[bool]:
    return [True] * layers


def _upper(config: Config, layers: int) -> list[bool]:
    first = config.size("max_window_layers", layers, least=0)
    return [index >= first for index in range(layers)]


def _even(_: Config, layers: int) -> list[bool]:
    return [index % 2 == 0 for index in range(layers)]


def _rotated(config: Config, layers: int) -> list[bool]:
    every = config.size("no_rope_layer_interval", 4)
    listed = config.integers("no_rope_layers") or [(index + 1) % every for index in range(layers)]
    return [bool(each) for each in listed]


@dataclass(frozen=True)
class Mixture:
    """The keys of a family's experts."""

    count: str
    width: str = "moe_intermediate_size"
    dense: str = "intermediate_size"  # of layers without experts
    shared: str | int = 0  # how many are shared, each as wide as one
    first_dense: str = ""
    every: str = ""  # one layer in so many has experts
    dense_listed: str = ""
    listed: str = ""
    groups: bool = False
    # Modules, for what a quantization leaves out.
    block: str = "mlp"
    matrices: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    shared_block: str = "shared_experts"


@dataclass(frozen=True)
class Family:
    """A row of the table: what is peculiar to a family's keys."""

    experts: Mixture | None = None
    latent: bool = False
    windowed: Windowed = lambda _, layers: [False] * layers
    window: str = "sliding_window"
    window_switch: str = ""
    qkv_bias: str = "attention_bias"
    qk_norm: str = ""
    only: Mapping[str, object] = field(default_factory=dict)  # keys of which but one value is known


_DEEPSEEK = Family(
    Mixture("n_routed_experts", shared="n_shared_experts", first_dense="first_k_dense_replace", groups=True),
    latent=True,
    only={"moe_layer_freq": 1},
)
_W = ("w1", "w2", "w3")

_FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(windowed=_all),
    "opt": Family(qkv_bias=""),
    "qwen2": Family(windowed=_upper, window_switch="use_sliding_window", qkv_bias=""),
    "qwen3": Family(windowed=_upper, window_switch="use_sliding_window"),
    "mixtral": Family(
        Mixture("num_local_experts", "intermediate_size", block="block_sparse_moe", matrices=_W),
        windowed=_all,
    ),
    "qwen3_moe": Family(
        Mixture("num_experts", every="decoder_sparse_step", dense_listed="mlp_only_layers"),
        windowed=_all,
        window_switch="use_sliding_window",
    ),
    "gpt_oss": Family(
        Mixture("num_local_experts", "intermediate_size"),
        windowed=_even,
    ),
    "llama4_text": Family(
        Mixture(
            "num_local_experts",
            "intermediate_size",
            dense="intermediate_size_mlp",
            shared=1,
            every="interleave_moe_layer_step",
            listed="moe_layers",
            block="feed_forward",
            shared_block="shared_expert",
        ),
        windowed=_rotated,
        window="attention_chunk_size",
    ),
    "glm4_moe": Family(_DEEPSEEK.experts, qk_norm="use_qk_norm"),
    "minimax_m2": Family(
        Mixture("num_local_experts", "intermediate_size", block="block_sparse_moe", matrices=_W),
        qk_norm="use_qk_norm",
        only={"shared_intermediate_size": 0, "attn_type_list": 1},
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
}

# Called otherwise, and the same.
_ALIASES = {"kimi_k2": "deepseek_v3", "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe"}

_LATENT = {
    "kv_rank": "kv_lora_rank",
    "rotary": "qk_rope_head_dim",
    "nope": "qk_nope_head_dim",
    "value": "v_head_dim",
}


def read_config(path: object, values: Mapping[str, Any], name: str) -> ModelShape:
    """Return the shape in a config.json; a UserError says which key is missing or not supported."""
    if isinstance(text := values.get("text_config"), dict):  # next to parts for images, which are left out
        outer = {key: values[key] for key in ("dtype", "torch_dtype", QUANTIZATION) if key in values}
        tied = {key: values[key] for key in ("tie_word_embeddings",) if key in values}
        values = {**outer, **text, **tied}
    called = values.get("model_type")
    family = _ALIASES.get(str(called), called)
    if not isinstance(family, str) or family not in _FAMILIES:
        raise UserError(
            "model-family-unsupported",
            f"{path}: model_type {called!r} is not supported; "
            f"supported: {', '.join((*_FAMILIES, *_ALIASES))}",
        )
    config, keys = Config(path, values), _FAMILIES[family]
    for key, value in keys.only.items():
        given = config.get(key)
        if any(each != value for each in (given if isinstance(given, list) else [given]) if each is not None):
            config.refuse(key, f"is {given!r}; modelled is {value!r}")
    layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
    if layers > _MOST_LAYERS:
        config.refuse("num_hidden_layers", f"is {layers!r}, and no model has more than {_MOST_LAYERS:,}")
    fields: Fields = {
        **FAMILIES[family],
        "layers": layers,
        "hidden": hidden,
        "heads": config.size("num_attention_heads"),
        "vocab": config.size("vocab_size"),
    }
    sparse = [False] * layers
    width = "ffn_dim" if family == "opt" else "intermediate_size"
    if keys.experts:
        sparse = _sparse(config, keys.experts, layers)
        fields["experts"] = experts = _experts(config, keys.experts, sparse)
        if experts.layers(layers) < layers:
            width = keys.experts.dense
    fields["intermediate"] = config.size(width)
    fields |= _attention(config, family, keys, fields["heads"], hidden)
    fields["window"] = _window(config, keys, layers)
    fields |= _formats(config, keys, sparse, fields.get("experts"))
    return ModelShape(name=str(values.get("_name_or_path") or name), source=str(path), **fields)


def _attention(config: Config, family: str, keys: Family, heads: int, hidden: int) -> Fields:
    if family == "opt":
        if config.size("word_embed_proj_dim", hidden) != hidden:
            config.refuse("word_embed_proj_dim", "differs from hidden_size (OPT-350M); not supported")
        positions = config.size("max_position_embeddings") + _OPT_OFFSET
        return {"kv_heads": heads, "head_dim": hidden // heads, "positions": positions}
    fields: Fields = {"tied_embeddings": bool(config.get("tie_word_embeddings"))}
    # Of the output matrix only gpt-oss' bias is counted; others' are a few kB.
    if keys.qkv_bias and (bias := config.get(keys.qkv_bias)) is not None:
        fields["qkv_bias"] = bool(bias)
    if keys.qk_norm and (norm := config.get(keys.qk_norm)) is not None:
        fields["qk_norm"] = bool(norm)
    if keys.latent:
        sizes = {name: config.size(key) for name, key in _LATENT.items()}
        latent = Latent(q_rank=config.size("q_lora_rank", 0), **sizes)
        return fields | {"kv_heads": 1, "head_dim": latent.width, "latent": latent}
    # Absent and null both mean "as many as heads".
    fields["kv_heads"] = config.size("num_key_value_heads", heads)
    return fields | {"head_dim": config.size("head_dim", hidden // heads)}


def _sparse(config: Config, keys: Mixture, layers: int) -> list[bool]:
    """Return the layers that have experts."""
    first = config.size(keys.first_dense, 0, least=0) if keys.first_dense else 0
    every = config.size(keys.every, 1) if keys.every else 1
    if keys.listed and (listed := config.integers(keys.listed)):
        return [index in listed for index in range(layers)]
    dense = config.integers(keys.dense_listed) if keys.dense_listed else []
    return [index >= first and (index + 1) % every == 0 and index not in dense for index in range(layers)]


def _experts(config: Config, keys: Mixture, sparse: list[bool]) -> Experts:
    width = config.size(keys.width)
    shared = keys.shared if isinstance(keys.shared, int) else config.size(keys.shared, 0, least=0)
    every = config.size(keys.every, 1) if keys.every else 1
    experts = Experts(
        config.size(keys.count),
        config.size("num_experts_per_tok"),
        width,
        shared * width,
        dense_layers=sparse.index(True) if every == 1 and True in sparse else 0,
        every=every,
        groups=config.size("n_group", 1) if keys.groups else 1,
        groups_taken=config.size("topk_group", 1) if keys.groups else 1,
    )
    behind = range(1 - experts.dense_layers, len(sparse) + 1 - experts.dense_layers)
    if sparse != [index > 0 and index % every == 0 for index in behind]:
        config.refuse(
            keys.dense_listed or keys.listed or keys.first_dense,
            "cannot be modelled: either the first layers have no experts, or all but one in so many",
        )
    return experts


def _window(config: Config, keys: Family, layers: int) -> Window | None:
    key, types = keys.window, config.get("layer_types")
    if keys.window_switch and not config.get(keys.window_switch):
        return None
    if types is not None:
        if not isinstance(types, list) or len(types) != layers or not all(each in _KINDS for each in types):
            config.refuse("layer_types", f"is not {layers} times one of {', '.join(_KINDS)}")
        windowed = [_KINDS[each] for each in types if _KINDS[each]]
        if len(set(windowed)) > 1:
            config.refuse("layer_types", "has both windows and chunks, which cannot be modelled")
        key, count = windowed[0] if windowed else key, len(windowed)
    else:
        count = sum(keys.windowed(config, layers))
    if not count or config.get(key) is None:
        return None
    window = Window(config.size(key), count, chunked=key == "attention_chunk_size")
    if window.frees and count == layers:
        config.refuse(key, f"{window.tokens} in every layer cannot be modelled: some must keep everything")
    return window


def _formats(config: Config, keys: Family, sparse: list[bool], experts: Experts | None) -> Fields:
    # transformers 4 wrote torch_dtype, 5 writes dtype.
    name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if name not in _DTYPES:
        config.refuse("dtype", f"{name!r} is not supported; supported: {', '.join(_DTYPES)}")
    quantized = Quantized()
    if quantization := config.get(QUANTIZATION):
        if not isinstance(quantization, dict):
            config.refuse(QUANTIZATION, "is not an object")
        quantized = read_quantization(quantization, _modules(keys, sparse), config.refuse)
    changed: Fields = {"dtype": quantized.matrices or _DTYPES[name]}
    if quantized.kv:
        changed["kv_dtype"] = quantized.kv
    if quantized.experts and experts:
        changed["experts"] = replace(experts, dtype=quantized.experts)
    return changed


def _modules(keys: Family, sparse: list[bool]) -> dict[str, list[str]]:
    """Return the names of modules by what they are a part of."""
    latent = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    attention = latent if keys.latent else ("q_proj", "k_proj", "v_proj", "o_proj")
    usual = ("gate_proj", "up_proj", "down_proj")
    layers, of = range(len(sparse)), keys.experts or Mixture("")
    mixed = [index for index in layers if sparse[index]]
    blocks = {
        "attention": (layers, "self_attn", attention),
        "dense layers": ([index for index in layers if not sparse[index]], of.block, usual),
        "shared experts": (mixed if of.shared else [], f"{of.block}.{of.shared_block}", usual),
        "experts": (mixed, f"{of.block}.experts.0", of.matrices),
    }
    return {
        part: [f"{index}.{block}.{name}" for index in where for name in names]
        for part, (where, block, names) in blocks.items()
        if where
    }


def write_config(shape: ModelShape, family: str, longest_text: int | None = None) -> dict[str, Json]:
    """Return the config.json of a shape: its sizes, and the family's defaults beyond them."""
    keys = _FAMILIES[family]
    config: dict[str, Json] = {
        "model_type": family,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied_embeddings,
        "dtype": _WRITTEN.get(shape.dtype, "bfloat16"),
    }
    if longest_text is not None:
        config |= {"max_position_embeddings": longest_text, "bos_token_id": None, "eos_token_id": None}
    if family == "opt":
        return config | {
            "ffn_dim": shape.intermediate,
            "word_embed_proj_dim": shape.hidden,
            "max_position_embeddings": shape.positions - _OPT_OFFSET,
        }
    config["intermediate_size"] = shape.intermediate
    if latent := shape.latent:
        config |= {"num_key_value_heads": shape.heads, "q_lora_rank": latent.q_rank or None}
        config |= {key: getattr(latent, name) for name, key in _LATENT.items()}
    else:
        config |= {"num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim}
    if shape.experts and keys.experts:
        config |= _written_experts(shape.experts, keys.experts, shape.intermediate)
    if keys.experts and keys.qkv_bias:
        config[keys.qkv_bias] = shape.qkv_bias
    if keys.qk_norm:
        config[keys.qk_norm] = shape.qk_norm
    if shape.window:
        config[keys.window] = shape.window.tokens
    return config


def _written_experts(experts: Experts, keys: Mixture, dense: int) -> dict[str, Json]:
    config: dict[str, Json] = {
        keys.dense: dense,
        keys.width: experts.intermediate,
        keys.count: experts.count,
        "num_experts_per_tok": experts.top_k,
    }
    if isinstance(keys.shared, str):
        config[keys.shared] = experts.shared // experts.intermediate
    if keys.first_dense:
        config[keys.first_dense] = experts.dense_layers
    if keys.every:
        config[keys.every] = experts.every
    if keys.dense_listed:
        config[keys.dense_listed] = list(range(experts.dense_layers))
    if keys.groups:
        config |= {"n_group": experts.groups, "topk_group": experts.groups_taken}
    return config
