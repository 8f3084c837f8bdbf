"""Where a model's architecture comes from: a folder, a config.json, a config object or a model object."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lamina.convert.errors import ConversionError, in_short, named
from lamina.convert.refuse import refuse_config
from lamina.convert.unmodified import check_unmodified

# How experts run without a loop over them that depends on values. Left alone, transformers takes the first.
_BATCHED_EXPERTS = ("grouped_mm", "batched_mm")
# In bytes: torch's grouped product refuses strides that are no multiple of it.
_GROUPED_ALIGNMENT = 16
# What a config may ask for besides logits, and a slice does not give.
_OTHER_OUTPUTS = ("output_router_logits", "output_attentions", "output_hidden_states")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Source:
    """An architecture without weights, and what it is called in messages."""

    label: str
    config: Any  # a transformers config of ours: changing it changes nothing of the caller's
    model_class: type[PreTrainedModel] | None
    dtype: torch.dtype
    experts: str | None
    eos_token_ids: tuple[int, ...]
    model: PreTrainedModel | None  # the caller's own, to compare with


def open_source(source: object, wanted: torch.dtype | str | None) -> Source:
    """Read what `source` says about the architecture; a ConversionError gives what is wrong with it."""
    with named("convert()"):
        dtype = None if wanted is None else _checked_dtype(wanted)
    if isinstance(source, (str, Path)):
        path = Path(source).expanduser()
        file = path / "config.json" if path.is_dir() else path
        with named(str(file)):
            return _from_file(file, dtype)
    kind = type(source).__name__
    with named(kind):
        if isinstance(source, PreTrainedModel):
            return _from_model(source, dtype)
        if isinstance(source, PreTrainedConfig):
            config = copy.deepcopy(source)
            return _from_config(config, kind, dtype, _token_ids(getattr(config, "eos_token_id", None)))
    raise ConversionError(
        "convert-source-kind",
        f"cannot convert {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}: give a model folder, a "
        "config.json, a transformers config or a transformers model",
    )


def build_on_meta(source: Source) -> PreTrainedModel:
    """The model with every parameter on the meta device: shapes, no memory."""
    model = _build(source, source.experts)
    if source.experts != "batched_mm" and not _can_group(model):
        model = _build(source, "batched_mm")
    if source.model is not None:
        check_unmodified(source.model, model)
    return model


def _build(source: Source, experts: str | None) -> PreTrainedModel:
    build: Any = source.model_class._from_config if source.model_class else AutoModelForCausalLM.from_config
    config = copy.deepcopy(source.config)  # building notes in it what it was built for
    config._experts_implementation = experts
    for output in _OTHER_OUTPUTS:
        if getattr(config, output, False):
            setattr(config, output, False)
    config.return_dict = True
    options = {"attn_implementation": "lamina", "dtype": source.dtype}
    try:
        with torch.device("meta"):
            model: PreTrainedModel = build(config, **options)
    except Exception as error:  # any of transformers' model files may fail in its own way
        if isinstance(error, KeyError) and error.args == (
            "lamina",
        ):  # a table of attention classes of its own
            raise ConversionError(
                "convert-attention-hidden",
                "its attention does not go through transformers' attention interface, so it "
                "cannot be cut out",
            ) from error
        raise ConversionError(
            "convert-unbuildable", f"transformers cannot build this model: {in_short(error)}"
        ) from error
    model.train(False)
    return model


def _can_group(model: PreTrainedModel) -> bool:
    """Whether rows of all experts' weights, laid out either way, start at multiples of what kernels need."""
    return all(
        size * weight.itemsize % _GROUPED_ALIGNMENT == 0
        for weight in model.parameters()
        if weight.dim() == 3
        for size in weight.shape[1:]
    )


def _from_model(model: PreTrainedModel, dtype: torch.dtype | None) -> Source:
    config = copy.deepcopy(model.config)
    label = type(model).__name__
    refuse_config(config)
    generation = getattr(model, "generation_config", None)
    eos = _token_ids((generation or config).eos_token_id)
    experts = config._experts_implementation
    return Source(
        label=label,
        config=config,
        model_class=type(model),
        # What the weights are; a config may still say what the checkpoint on disk was.
        dtype=dtype or _checked_dtype(model.dtype),
        experts=experts if experts in _BATCHED_EXPERTS else None,
        eos_token_ids=tuple(dict.fromkeys(eos)),
        model=model,
    )


def _from_config(config: Any, label: str, dtype: torch.dtype | None, eos: tuple[int, ...]) -> Source:
    refuse_config(config)
    return Source(
        label=label,
        config=config,
        model_class=None,
        dtype=dtype or _checked_dtype(config.dtype or torch.bfloat16),
        experts=None,
        eos_token_ids=eos,
        model=None,
    )


def _from_file(file: Path, dtype: torch.dtype | None) -> Source:
    data = _read_json(file)
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
    try:
        config = CONFIG_MAPPING[family].from_dict(data)
    except Exception as error:  # the validators of each config class raise what they like
        raise ConversionError(
            "convert-config-rejected", f"transformers rejects this config: {in_short(error)}; correct it"
        ) from error
    # As transformers' generate: what generation_config says counts, where there is one.
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
    except ValueError as error:
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
    """One of the types that slices compute in, by itself or by its name."""
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
