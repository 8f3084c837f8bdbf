"""A config.json's `quantization_config`: which of a model's weights have which format."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

# What the modules of a layer are called below any of these.
_ROOTS = ("model.layers", "language_model.model.layers", "model.language_model.layers")

# (bits, type, elements a scale) of a weight: its format. 0: a scale a tensor or a channel.
_BY_BITS: Mapping[tuple[object, object, int], str] = {
    (8, "float", 0): "fp8",
    (8, "int", 0): "int8",
    (4, "float", 16): "nvfp4",
    (4, "float", 32): "mxfp4",
    (4, "int", 32): "int4",
}
_ALGORITHMS = {"FP8": "fp8", "NVFP4": "nvfp4"}  # modelopt's
_BLOCK = [128, 128]

KEY = "quantization_config"
Refuse = Callable[[str, str], NoReturn]


class Quantized(NamedTuple):
    """Formats of the matrices, of experts where they differ, and of KV; None as without quantization."""

    matrices: str | None = None
    experts: str | None = None
    kv: str | None = None


def read_quantization(
    config: Mapping[str, Any], modules: Mapping[str, Iterable[str]], refuse: Refuse
) -> Quantized:
    """Return the types of modules, by what they are a part of: "attention", "experts" and others.

    A shape holds either all matrices in one format or experts alone; anything between is refused.
    """
    form = _format(config, refuse)
    leaves = _leaves(config)
    unquantized: dict[str, bool] = {}
    for part, names in modules.items():
        verdicts = {leaves(name) for name in names}
        if len(verdicts) > 1:
            refuse(KEY, f"quantizes {part} in part, which cannot be modelled")
        unquantized[part] = verdicts == {True}
    kv = _kv(config, refuse)
    if not any(unquantized.values()):
        return Quantized(form, None, kv)
    if all(unquantized.values()):
        return Quantized(None, None, kv)
    quantized = [part for part, is_unquantized in unquantized.items() if not is_unquantized]
    if quantized != ["experts"]:
        refuse(KEY, f"quantizes {', '.join(quantized)} alone; modelled are experts alone, or all matrices")
    return Quantized(None, form, kv)


def _format(config: Mapping[str, Any], refuse: Refuse) -> str:
    method = config.get("quant_method")
    if method == "mxfp4":
        return "mxfp4"
    if method == "fp8" and "quant_algo" not in config:
        block = config.get("weight_block_size")
        if block not in (None, _BLOCK):
            refuse(KEY, f"has weight_block_size {block!r}; modelled is {_BLOCK}")
        return "fp8_block" if block else "fp8"
    if algorithm := config.get("quant_algo"):
        if algorithm not in _ALGORITHMS:
            refuse(KEY, f"has quant_algo {algorithm!r}; modelled are {', '.join(_ALGORITHMS)}")
        return _ALGORITHMS[algorithm]
    groups = list((config.get("config_groups") or {}).values())
    if method != "compressed-tensors" or len(groups) != 1:
        refuse(KEY, f"has quant_method {method!r} and {len(groups)} config_groups, which is not modelled")
    if (targets := groups[0].get("targets")) != ["Linear"]:
        refuse(KEY, f"has targets {targets!r}; modelled is ['Linear']")
    weights = groups[0].get("weights") or {}
    if weights.get("strategy") == "block" and weights.get("block_structure") == _BLOCK:
        return "fp8_block"
    kind = (weights.get("num_bits"), weights.get("type"), weights.get("group_size") or 0)
    if kind not in _BY_BITS or weights.get("strategy") == "block":
        refuse(
            KEY, f"has weights of {kind[0]} bits ({kind[1]}) in groups of {kind[2]}, which is not modelled"
        )
    return _BY_BITS[kind]


def _kv(config: Mapping[str, Any], refuse: Refuse) -> str | None:
    scheme = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    if not scheme:
        return None
    kind = (scheme.get("num_bits"), scheme.get("type")) if isinstance(scheme, dict) else scheme
    if kind not in ("FP8", (8, "float")):
        refuse(KEY, f"holds KV as {scheme!r}; modelled is fp8")
    return "fp8"


def _leaves(config: Mapping[str, Any]) -> Callable[[str], bool]:
    """Return a test for modules left unquantised; patterns are module names, their ends, globs, or re:..."""
    lists = (config.get(key) or [] for key in ("ignore", "modules_to_not_convert", "exclude_modules"))
    patterns = [_regex(str(pattern)) for each in lists for pattern in each]
    if not patterns:
        return lambda name: False
    matches = re.compile("|".join(f"(?:{pattern})" for pattern in patterns)).match
    return lambda name: any(matches(f"{root}.{name}") for root in _ROOTS)


def _regex(pattern: str) -> str:
    if pattern.startswith("re:"):
        return pattern.removeprefix("re:")
    body = fnmatch.translate(pattern).removeprefix("(?s:").removesuffix(r")\Z")
    return rf"(?:.*\.)?{body}(?:\..*)?$"
