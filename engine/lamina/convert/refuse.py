"""Which models are refused from their config alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers.activations import ACT2FN

from lamina.convert.errors import ConversionError

# How RoPE frequencies are made. Those left out change them with the longest request of a batch.
FIXED_ROPE = frozenset({"default", "linear", "yarn", "llama3", "proportional"})

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


def refuse_config(config: Any) -> None:
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
                f"output would depend on its neighbours; types that work: {', '.join(sorted(FIXED_ROPE))}",
            )
        if rope not in FIXED_ROPE:
            raise ConversionError(
                "convert-rope-unknown",
                f"RoPE of type {rope!r} is not known here; types that work: {', '.join(sorted(FIXED_ROPE))}",
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
