"""Where a model's architecture comes from: a folder, a config.json, a config object or a model object."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lamina.convert.errors import ConversionError, in_short
from lamina.convert.refuse import refuse_config

# How experts run without a loop over them that depends on values. Left alone, transformers takes the first.
_BATCHED_EXPERTS = ("grouped_mm", "batched_mm")


@dataclass(frozen=True)
class Source:
    """An architecture without weights, and what it is called in messages."""

    label: str
    config: Any  # a transformers config of ours: changing it changes nothing of the caller's
    model_class: type[PreTrainedModel] | None
    dtype: torch.dtype
    experts: str | None
    eos_token_ids: tuple[int, ...]
    shapes: Mapping[str, tuple[int, ...]] | None  # of the caller's own model, to compare with


def open_source(source: object, dtype: torch.dtype | None) -> Source:
    """Read what `source` says about the architecture; a ConversionError says what is wrong with it."""
    if isinstance(source, PreTrainedModel):
        return _from_model(source, dtype)
    if isinstance(source, PreTrainedConfig):
        config = copy.deepcopy(source)
        return _from_config(
            config, type(source).__name__, dtype, _token_ids(getattr(config, "eos_token_id", None))
        )
    if isinstance(source, (str, Path)):
        return _from_path(Path(source), dtype)
    raise ConversionError(
        f"cannot convert a {type(source).__name__}: give a model folder, a config.json, a transformers "
        "config or a transformers model"
    )


def build_on_meta(source: Source) -> PreTrainedModel:
    """The model with every parameter on the meta device: shapes, no memory."""
    build: Any = source.model_class._from_config if source.model_class else AutoModelForCausalLM.from_config
    config = copy.deepcopy(source.config)  # building notes in it what it was built for
    config._experts_implementation = source.experts
    options = {"attn_implementation": "lamina", "dtype": source.dtype}
    try:
        with torch.device("meta"):
            model: PreTrainedModel = build(config, **options)
    except Exception as error:  # a hundred model files of somebody else's may fail in their own ways
        if isinstance(error, KeyError) and error.args == (
            "lamina",
        ):  # a table of attention classes of its own
            raise ConversionError(
                f"{source.label}: its attention does not go through transformers' attention interface, so it "
                "cannot be cut out"
            ) from error
        raise ConversionError(
            f"{source.label}: transformers cannot build this model: {in_short(error)}"
        ) from error
    model.train(False)
    if source.shapes is not None:
        _compare(source.label, source.shapes, _shapes(model))
    return model


def _from_model(model: PreTrainedModel, dtype: torch.dtype | None) -> Source:
    config = copy.deepcopy(model.config)
    label = type(model).__name__
    refuse_config(config, label)
    generation = getattr(model, "generation_config", None)
    eos = (*_token_ids(config.eos_token_id), *_token_ids(getattr(generation, "eos_token_id", None)))
    experts = config._experts_implementation
    return Source(
        label=label,
        config=config,
        model_class=type(model),
        # What the weights are; a config may still say what the checkpoint on disk was.
        dtype=dtype or model.dtype,
        experts=experts if experts in _BATCHED_EXPERTS else None,
        eos_token_ids=tuple(dict.fromkeys(eos)),
        shapes=_shapes(model),
    )


def _from_config(config: Any, label: str, dtype: torch.dtype | None, eos: tuple[int, ...]) -> Source:
    refuse_config(config, label)
    return Source(
        label=label,
        config=config,
        model_class=None,
        dtype=dtype or _config_dtype(config, label),
        experts=None,
        eos_token_ids=eos,
        shapes=None,
    )


def _from_path(path: Path, dtype: torch.dtype | None) -> Source:
    file = path / "config.json" if path.is_dir() else path
    data = _read_json(file)
    if isinstance(data.get("quantization_config"), dict):
        raise ConversionError(f"{file}: quantised weights cannot be split; use the original model's folder")
    family = data.get("model_type")
    if not isinstance(family, str):
        raise ConversionError(
            f"{file}: there is no model_type; is this the config.json of a Hugging Face model?"
        )
    if family not in CONFIG_MAPPING:
        raise ConversionError(
            f"{file}: this transformers does not know model_type {family!r} (code from the model's folder is "
            "never run); upgrade transformers or choose another model"
        )
    try:
        config = CONFIG_MAPPING[family].from_dict(data)
    except Exception as error:  # the validators of each config class raise what they like
        raise ConversionError(
            f"{file}: transformers rejects this config: {in_short(error)}; correct it"
        ) from error
    eos = list(_token_ids(getattr(config, "eos_token_id", None)))
    generation = file.parent / "generation_config.json"
    if generation.is_file():
        eos += _token_ids(_read_json(generation).get("eos_token_id"))
    return _from_config(config, str(file), dtype, tuple(dict.fromkeys(eos)))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConversionError(
            f"cannot read {file}: {error.strerror}; give a folder with a config.json, or that file"
        ) from error
    except ValueError as error:
        raise ConversionError(f"{file}: not valid JSON: {in_short(error)}; download it again") from error
    if not isinstance(data, dict):
        raise ConversionError(
            f"{file}: a Hugging Face config is a JSON object; this is a {type(data).__name__}"
        )
    return data


def _config_dtype(config: Any, label: str) -> torch.dtype:
    dtype = config.dtype
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype.removeprefix("torch."), dtype)
    if dtype is None:
        return torch.bfloat16
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise ConversionError(
            f"{label}: dtype {dtype} is not float32, float16 or bfloat16; choose one of them"
        )
    return dtype


def _token_ids(value: object) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,)
    return tuple(item for item in value if isinstance(item, int)) if isinstance(value, list) else ()


def _shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    named: Iterable[tuple[str, torch.Tensor]] = model.named_parameters(remove_duplicate=False)
    return {name: tuple(parameter.shape) for name, parameter in named}


def _compare(label: str, given: Mapping[str, tuple[int, ...]], built: Mapping[str, tuple[int, ...]]) -> None:
    # Adapters, pruned heads and quantised layers all change what the parameters are called or their shape.
    if given == built:
        return
    name = sorted(name for name in {*given, *built} if given.get(name) != built.get(name))[0]
    raise ConversionError(
        f"{label}: the parameter {name} is {given.get(name)} in the model but {built.get(name)} by its "
        "config; merge or remove what was changed after loading"
    )
