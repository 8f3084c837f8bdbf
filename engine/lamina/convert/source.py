"""Where a model's architecture comes from: a folder, a config.json, a config object or a model object;
and which are refused from their config alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN

from lamina.convert.errors import ConversionError, in_short, named

# Only the class and the config are converted. Hooks, replaced modules, adapters, changed numbers and tables
# exist only in the object: they are detected here and refused, since the slices would leave them out.

# What differs between a model in use and one just built, and changes nothing that is computed.
_HARMLESS = frozenset(
    {
        *("training", "name_or_path", "gradient_checkpointing", "_is_hf_initialized", "_attn_implementation"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "_is_full_backward_hook"),
        "vocab_size",  # stale after resizing embeddings, whose shapes are compared
    }
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# transformers leaves hooks behind after returning hidden states once; they only read.
_ONLY_LOOKS = "transformers.utils.output_capturing"


def check_unmodified(given: PreTrainedModel, built: PreTrainedModel) -> None:
    """Raise a ConversionError that names what `given` has been made into since it was built."""
    _check_parameters(given, built)
    modules, expected = dict(given.named_modules()), dict(built.named_modules())
    for name in sorted({*modules, *expected}):
        reason = _difference(modules.get(name), expected.get(name))
        if reason:
            raise ConversionError(
                "convert-changed-module",
                f"{name or 'the model'} {reason}, which would be lost; convert a model as it was loaded",
            )
    _check_ties(given, built)


def check_tables(given: PreTrainedModel, tables: Mapping[str, Tensor]) -> None:
    """Raise a ConversionError if a table that follows from the config has other values in the object."""
    for name, table in tables.items():
        own = given.get_buffer(name)
        if own.is_meta:
            continue
        own, restored = own.detach().cpu(), table.to(own.dtype)  # the table of a model in float16 is rounded
        if own.dtype.is_floating_point:
            # A GPU's powers and cosines may differ in the last bits.
            tolerance = max(1e-5, torch.finfo(own.dtype).eps)
            same = own.shape == restored.shape and torch.allclose(
                own.double(), restored.double(), rtol=tolerance, atol=0.0
            )
        else:
            same = torch.equal(own, restored)
        if not same:
            raise ConversionError(
                "convert-changed-buffer",
                f"the buffer {name} is not what its config gives, which would be lost; convert a model "
                "as it was loaded",
            )


def _check_parameters(given: PreTrainedModel, built: PreTrainedModel) -> None:
    # Adapters, pruned heads and quantised layers all change what the parameters are called or their shape.
    ours, theirs = _shapes(given), _shapes(built)
    if ours == theirs:
        return
    name = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))[0]
    raise ConversionError(
        "convert-changed-parameter",
        f"the parameter {name} is {ours.get(name)} in the model but {theirs.get(name)} by its "
        "config; merge or remove what was changed after loading",
    )


def _shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in model.named_parameters(remove_duplicate=False)}


def _difference(given: nn.Module | None, built: nn.Module | None) -> str | None:
    if given is None or built is None:
        return "was removed after loading" if given is None else "was added after loading"
    if type(given) is not type(built):
        return f"is of class {type(given).__name__}, not {type(built).__name__} as its config says"
    if any(_changes(hook) for hooks in _HOOKS for hook in getattr(given, hooks).values()):
        return "has hooks around its forward"
    # accelerate moves weights about in such a forward, which it marks.
    if "forward" in given.__dict__ and "forward" not in built.__dict__ and not hasattr(given, "_hf_hook"):
        return "has a forward of its own"
    if (names := {*given._buffers} ^ {*built._buffers}) != set():
        return f"has other buffers than its config says ({', '.join(sorted(names))})"
    ours, theirs = dict(_plain(given)), dict(_plain(built))
    for name in ours.keys() & theirs.keys():
        if ours[name] != theirs[name] or type(ours[name]) is not type(theirs[name]):
            return f"has {name} = {ours[name]!r}, not {theirs[name]!r} as its config says"
    return None


def _changes(hook: Any) -> bool:
    return getattr(hook, "__module__", None) != _ONLY_LOOKS


def _plain(module: nn.Module) -> Iterator[tuple[str, object]]:
    """A module's numbers, switches and names."""
    whole = isinstance(module, PreTrainedModel)  # keeps notes on itself, all of them private
    dropout = isinstance(module, nn.modules.dropout._DropoutNd)  # does nothing in evaluation
    for name, value in vars(module).items():
        if name in _HARMLESS or (whole and name.startswith("_")) or (dropout and name in {"p", "inplace"}):
            continue
        if isinstance(value, (int, float, str)) or (
            isinstance(value, tuple) and all(isinstance(item, (int, float, str)) for item in value)
        ):
            yield name, value


def _check_ties(given: PreTrainedModel, built: PreTrainedModel) -> None:
    """What the config ties must hold the same values; what only the object ties does so anyway."""
    ours = dict(given.named_parameters(remove_duplicate=False))
    first: dict[int, str] = {}
    for name, parameter in built.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(parameter), name)
        if ours[other] is not ours[name] and (ours[name].is_meta or not same_values(ours[other], ours[name])):
            raise ConversionError(
                "convert-ties-differ",
                f"its config ties {other} and {name}, which differ in the model; set "
                "tie_word_embeddings of its config to False",
            )


def same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two weights hold the same numbers, without looking where they share memory."""
    if one.is_meta or other.is_meta or one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.device == other.device and one.data_ptr() == other.data_ptr() and one.stride() == other.stride():
        return True
    return torch.equal(one.detach().to(other.device), other.detach())


# How experts run without a loop over them that depends on values. Left alone, transformers takes the first.
_BATCHED_EXPERTS = ("grouped_mm", "batched_mm")
# In bytes: torch's grouped product refuses strides that are no multiple of it.
_GROUPED_ALIGNMENT = 16
# What a config may ask for besides logits, and a slice does not give.
_OTHER_OUTPUTS = ("output_router_logits", "output_attentions", "output_hidden_states")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# How RoPE frequencies are made. Those left out change them with the longest request of a batch.
_FIXED_ROPE = frozenset({"default", "linear", "yarn", "llama3", "proportional"})

_LENGTH_ROPE = frozenset({"dynamic", "longrope", "su"})

# BERT-like decoders whose own positions start behind the padding token's number: given 0, 1, 2, ... as all
# others are, they compute something else.
_SHIFTED_POSITIONS = frozenset(
    {
        *("camembert", "data2vec-text", "esm", "ibert", "longformer", "mpnet", "roberta"),
        *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    }
)
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")


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
        if isinstance(source, PreTrainedConfig | dict):
            config = _parsed(source) if isinstance(source, dict) else copy.deepcopy(source)
            return _from_config(config, kind, dtype, _token_ids(getattr(config, "eos_token_id", None)))
    raise ConversionError(
        "convert-source-kind",
        f"cannot convert {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}: give a model folder, a "
        "config.json or what is in one, a transformers config or a transformers model",
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
    _refuse_config(config)
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
    """What a config.json says."""
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
        return CONFIG_MAPPING[family].from_dict(data)
    except Exception as error:  # the validators of each config class raise what they like
        raise ConversionError(
            "convert-config-rejected", f"transformers rejects this config: {in_short(error)}; correct it"
        ) from error


def _from_file(file: Path, dtype: torch.dtype | None) -> Source:
    config = _parsed(_read_json(file))
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
    for given in _ACTIVATIONS:
        name = getattr(config, given, None)
        if isinstance(name, str) and name not in ACT2FN:
            raise ConversionError(
                "convert-activation-unknown",
                f"transformers knows no activation {name!r} ({given}); correct it",
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
