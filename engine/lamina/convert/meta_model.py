"""Models on the meta device, built from a config, and the check that a caller's model is unmodified."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.activations import ACT2FN

from lamina.convert.constants import same_values
from lamina.convert.errors import ConversionError, in_short
from lamina.convert.source import Source

# In bytes: torch's grouped product refuses strides that are no multiple of it.
_GROUPED_ALIGNMENT = 16
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
# Outputs besides logits that a config may request and slices do not have.
_OTHER_OUTPUTS = ("output_router_logits", "output_attentions", "output_hidden_states")
# Only the class and the config are converted. Hooks, replaced modules, adapters, changed numbers and tables
# exist only in the object: they are detected here and refused, since the slices would leave them out.

# Attributes that may differ from a new model without changing what is computed.
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
    """Raise a ConversionError that names what was changed in `given` since it was built."""
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
        own, restored = own.detach().cpu(), table.to(own.dtype)  # tables in float16 are rounded
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
    # Adapters, pruned heads and quantised layers all change parameters' names or shapes.
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
    # accelerate moves weights in a forward of its own, which it marks.
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
    """Yield a module's plain attributes."""
    whole = isinstance(module, PreTrainedModel)  # private attributes are bookkeeping
    dropout = isinstance(module, nn.modules.dropout._DropoutNd)  # does nothing in evaluation
    for name, value in vars(module).items():
        if name in _HARMLESS or (whole and name.startswith("_")) or (dropout and name in {"p", "inplace"}):
            continue
        if isinstance(value, (int, float, str)) or (
            isinstance(value, tuple) and all(isinstance(item, (int, float, str)) for item in value)
        ):
            yield name, value


def _check_ties(given: PreTrainedModel, built: PreTrainedModel) -> None:
    """Raise a ConversionError if parameters that the config ties have different values."""
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


def build_on_meta(source: Source) -> PreTrainedModel:
    """Build the model with every parameter on the meta device, without memory."""
    _refuse_activations(source.config)
    model = _build(source, source.experts)
    if source.experts != "batched_mm" and not _can_group(model):
        model = _build(source, "batched_mm")
    if source.model is not None:
        check_unmodified(source.model, model)
    return model


def _build(source: Source, experts: str | None) -> PreTrainedModel:
    build: Any = source.model_class._from_config if source.model_class else AutoModelForCausalLM.from_config
    config = copy.deepcopy(source.config)  # building changes the config
    config._experts_implementation = experts
    for output in _OTHER_OUTPUTS:
        if getattr(config, output, False):
            setattr(config, output, False)
    config.return_dict = True
    options = {"attn_implementation": "lamina", "dtype": source.dtype}
    try:
        with torch.device("meta"):
            model: PreTrainedModel = build(config, **options)
    except Exception as error:  # model files may raise anything
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


def _refuse_activations(config: Any) -> None:
    for given in _ACTIVATIONS:
        name = getattr(config, given, None)
        if isinstance(name, str) and name not in ACT2FN:
            raise ConversionError(
                "convert-activation-unknown",
                f"transformers knows no activation {name!r} ({given}); correct it",
            )


def _can_group(model: PreTrainedModel) -> bool:
    """Return whether rows of all experts' weights, in either layout, are aligned for grouped kernels."""
    return all(
        size * weight.itemsize % _GROUPED_ALIGNMENT == 0
        for weight in model.parameters()
        if weight.dim() == 3
        for size in weight.shape[1:]
    )
