"""JSON values, and conversion of typed facts to them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

if TYPE_CHECKING:
    Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
    JsonObject = Mapping[str, Json]
else:  # a reader of types at run time cannot follow a type that has itself in it
    Json, JsonObject = object, dict


def json_safe(fact: Any) -> Any:
    """Replace numbers that JSON lacks, such as the end of an open window, by null."""
    if isinstance(fact, Mapping):
        return {name: json_safe(inner) for name, inner in fact.items()}
    if isinstance(fact, list | tuple):
        return [json_safe(inner) for inner in fact]
    return None if isinstance(fact, float) and not math.isfinite(fact) else fact


def to_json(facts: msgspec.Struct) -> dict[str, Json]:
    """Convert typed facts to the keys of `--json` and files."""
    return cast("dict[str, Json]", msgspec.to_builtins(facts, enc_hook=as_number))


def as_number(value: object) -> float | int:
    """Convert NumPy numbers, which JSON does not know."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int) or hasattr(value, "__index__"):
        return int(value)
    raise NotImplementedError(f"{type(value).__name__} is no value of JSON")
