"""Sources of architectures: a folder, a config.json, a config object or a model object."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import nn

from lamina.convert.errors import ConversionError, in_short, named

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Implementations of experts without a loop that depends on values; transformers' default is the first.
_BATCHED_EXPERTS = ("grouped_mm", "batched_mm")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# RoPE types with fixed frequencies; others change them with the longest request of a batch.
_FIXED_ROPE = frozenset({"default", "linear", "yarn", "llama3", "proportional"})

_LENGTH_ROPE = frozenset({"dynamic", "longrope", "su"})

# BERT-like decoders whose positions start after the padding token's number: with positions 0, 1, 2, ... they
# compute something else.
_SHIFTED_POSITIONS = frozenset(
    {
        *("camembert", "data2vec-text", "esm", "ibert", "longformer", "mpnet", "roberta"),
        *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    }
)


@dataclass(frozen=True)
class Source:
    """An architecture without weights, and its label in messages."""

    label: str
    config: Any  # a copy of the caller's transformers config
    model_class: type[PreTrainedModel] | None
    dtype: torch.dtype
    experts: str | None
    eos_token_ids: tuple[int, ...]
    model: PreTrainedModel | None  # the caller's, to compare with


def open_source(source: object, requested: torch.dtype | str | None) -> Source:
    """Read the architecture from `source`; a ConversionError says what is wrong with it."""
    with named("convert()"):
        dtype = None if requested is None else _checked_dtype(requested)
    if isinstance(source, (str, Path)):
        path = Path(source).expanduser()
        file = path / "config.json" if path.is_dir() else path
        with named(str(file)):
            return _from_file(file, dtype)
    from transformers import PreTrainedConfig  # takes a second to load

    kind = type(source).__name__
    with named(kind):
        if _is_model(source):
            return _from_model(source, dtype)
        if isinstance(source, PreTrainedConfig | dict):
            config = _parsed(source) if isinstance(source, dict) else copy.deepcopy(source)
            return _from_config(config, kind, dtype, _token_ids(getattr(config, "eos_token_id", None)))
    raise ConversionError(
        "convert-source-kind",
        f"cannot convert {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}: give a model folder, a "
        "config.json or what is in one, a transformers config or a transformers model",
    )


def _is_model(source: object) -> TypeGuard[PreTrainedModel]:
    if not isinstance(source, nn.Module):
        return False
    from transformers import PreTrainedModel  # takes a second to load, and is loaded if `source` is one

    return isinstance(source, PreTrainedModel)


def _from_model(model: PreTrainedModel, dtype: torch.dtype | None) -> Source:
    config = copy.deepcopy(model.config)
    label = type(model).__name__
    _refuse_config(config)
    generation = getattr(model, "generation_config", None)
    eos = _token_ids((generation or config).eos_token_id)
    experts = config._experts_implementation
    return Source(
        label=label,
        config=config,
        model_class=type(model),
        # The weights' type; a config may still have that of the checkpoint on disk.
        dtype=dtype or _checked_dtype(model.dtype),
        experts=experts if experts in _BATCHED_EXPERTS else None,
        eos_token_ids=tuple(dict.fromkeys(eos)),
        model=model,
    )


def _from_config(config: Any, label: str, dtype: torch.dtype | None, eos: tuple[int, ...]) -> Source:
    _refuse_config(config)
    return Source(
        label=label,
        config=config,
        model_class=None,
        dtype=dtype or _checked_dtype(config.dtype or torch.bfloat16),
        experts=None,
        eos_token_ids=eos,
        model=None,
    )


def _parsed(data: dict[str, Any]) -> Any:
    """Parse the content of a config.json."""
    from transformers import CONFIG_MAPPING

    family = data.get("model_type")
    if not isinstance(family, str):
        raise ConversionError(
            "convert-no-model-type",
            "there is no model_type; is this the config.json of a Hugging Face model?",
        )
    if family not in CONFIG_MAPPING:
        raise ConversionError(
            "convert-model-type-unknown",
            f"this transformers does not know model_type {family!r} (code from the model's folder is "
            "never run); upgrade transformers or choose another model",
        )
    # How layers are computed is chosen here; a config could name code on a hub.
    described = {name: value for name, value in data.items() if "_implementation" not in name}
    try:
        return CONFIG_MAPPING[family].from_dict(described)
    except Exception as error:  # the validators of each config class raise what they like
        raise ConversionError(
            "convert-config-rejected", f"transformers rejects this config: {in_short(error)}; correct it"
        ) from error


def _from_file(file: Path, dtype: torch.dtype | None) -> Source:
    config = _parsed(_read_json(file))
    # Like transformers' generate: generation_config has precedence.
    generation = file.parent / "generation_config.json"
    if generation.is_file():
        with named(generation.name):
            eos = _token_ids(_read_json(generation).get("eos_token_id"))
    else:
        eos = _token_ids(getattr(config, "eos_token_id", None))
    return _from_config(config, str(file), dtype, tuple(dict.fromkeys(eos)))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConversionError(
            "convert-unreadable",
            f"it cannot be read: {error.strerror}; give a folder with a config.json, or that file",
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConversionError(
            "convert-config-not-json", f"not valid JSON: {in_short(error)}; download it again"
        ) from error
    if not isinstance(data, dict):
        raise ConversionError(
            "convert-config-not-object",
            f"a Hugging Face config is a JSON object; this is a {type(data).__name__}",
        )
    return data


def _checked_dtype(dtype: object) -> torch.dtype:
    """Return one of the types that slices compute in, given as a dtype or a name."""
    chosen = getattr(torch, dtype.removeprefix("torch."), dtype) if isinstance(dtype, str) else dtype
    if not isinstance(chosen, torch.dtype) or chosen not in _DTYPES:
        raise ConversionError(
            "convert-dtype", f"dtype {dtype} is not float32, float16 or bfloat16; choose one of them"
        )
    return chosen


def _token_ids(value: object) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,)
    return tuple(item for item in value if isinstance(item, int)) if isinstance(value, list) else ()


def _refuse_config(config: Any) -> None:
    """Raise a ConversionError if `config` describes something that cannot be split."""
    if getattr(config, "quantization_config", None) is not None:
        raise ConversionError(
            "convert-quantised", "quantised weights cannot be split; use the original model"
        )
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False):
        raise ConversionError(
            "convert-encoder-decoder",
            "an encoder-decoder has two kinds of attention; only decoders are split",
        )
    if config.get_text_config() is not config:
        raise ConversionError(
            "convert-modalities",
            "a model of several modalities; convert the config of its text model instead",
        )
    if getattr(config, "alibi", False) or config.model_type in {"bloom", "mpt"}:
        raise ConversionError(
            "convert-alibi",
            "its attention is biased by distance (ALiBi), which attention workers do not compute",
        )
    if getattr(config, "is_causal", True) is False or getattr(config, "use_bidirectional_attention", False):
        raise ConversionError(
            "convert-not-causal", "its attention is not causal, so there is no KV cache to move away"
        )
    if isinstance(getattr(config, "num_kv_shared_layers", None), int) and config.num_kv_shared_layers > 0:
        raise ConversionError(
            "convert-shared-keys", "some of its layers attend to another layer's keys (KV sharing)"
        )
    if config.model_type in _SHIFTED_POSITIONS:
        raise ConversionError(
            "convert-shifted-positions",
            f"{config.model_type} counts positions from its padding token's number on, not from 0 "
            "as the workers here do",
        )
    _refuse_rope(config)
    _refuse_numbers(config)


def _refuse_rope(config: Any) -> None:
    for rope in _rope_types(getattr(config, "rope_parameters", None)):
        if rope in _LENGTH_ROPE:
            raise ConversionError(
                "convert-rope-depends-on-batch",
                f"RoPE of type {rope!r} depends on the longest request of a batch, so a request's "
                f"output would depend on its neighbours; types that work: {', '.join(sorted(_FIXED_ROPE))}",
            )
        if rope not in _FIXED_ROPE:
            raise ConversionError(
                "convert-rope-unknown",
                f"RoPE of type {rope!r} is not known here; types that work: {', '.join(sorted(_FIXED_ROPE))}",
            )


def _refuse_numbers(config: Any) -> None:
    for needed in ("num_hidden_layers", "vocab_size", "max_position_embeddings"):
        if not isinstance(getattr(config, needed, None), int):
            raise ConversionError(
                "convert-config-incomplete",
                f"its config does not say {needed}; is it a causal language model?",
            )
    if config.num_hidden_layers < 1:
        raise ConversionError(
            "convert-no-layers", f"{config.num_hidden_layers} layers leave nothing to split"
        )


def _rope_types(parameters: object) -> Iterator[object]:
    # Either one set of parameters or one for each kind of layer.
    if not isinstance(parameters, dict):
        return
    if "rope_type" in parameters or "type" in parameters:
        yield parameters.get("rope_type", parameters.get("type"))
        return
    for value in parameters.values():
        yield from _rope_types(value)
