"""Convert a model and say all there is to say of it, ready for JSON. Needs the `engine` extra."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers

from lamina.convert import Conversion, ConversionError, convert, describe
from lamina.convert.describe import transfer
from laminabench.catalog.to_hf_config import ASSUMED
from laminabench.conversion.asked import Asked
from laminabench.conversion.products import ELEMENT_BYTES, products_of
from laminabench.errors import UserError


def converted(model: Asked, dtype: str | None, rope: str) -> Conversion:
    """The model cut into slices; a UserError says why it cannot be."""
    try:
        with _undisturbed():
            source: object = model.config
            if isinstance(source, Mapping):
                source = transformers.AutoConfig.for_model(**source)
            return convert(source, dtype=getattr(torch, dtype) if dtype else None, rope=rope)
    except ConversionError as error:
        raise UserError(error.code, str(error)) from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No advice from transformers about special tokens, and no searching of a growing graph for garbage."""
    log, collecting = transformers.logging, gc.isenabled()
    level = log.get_verbosity()
    log.set_verbosity_error()
    gc.disable()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if collecting:
            gc.enable()


def report(model: Asked, dtype: str | None = None, rope: str = "carry") -> dict[str, Any]:
    """Everything that is to be said of a model's conversion."""
    started = time.perf_counter()
    conversion = converted(model, dtype, rope)
    facts = describe(conversion)
    if model.origin == "catalogue":
        # These two would be transformers' defaults, which are not the model's.
        facts["eos_token_ids"] = None
        if facts["model_type"] != "opt":
            facts["max_positions"] = None
    makers = _makers(facts["slices"])
    for piece in facts["slices"]:
        piece["products"] = products_of(piece["parts"])
        for value in piece["cut"]:
            value["made_by"] = makers[value["node"]]
    element = ELEMENT_BYTES[facts["dtype"]]
    facts["transfer"] = [transfer(conversion, op, element) for op in conversion.attentions]
    return {
        "model": model.name,
        "origin": model.origin,
        "shapes_from": model.shapes_from,
        "assumed": list(ASSUMED) if model.origin == "catalogue" else [],
        "layers": len(facts["attentions"]),
        "context_bytes": max(conversion.cut_bytes),
        "transfer_agrees": all(row["agrees"] for row in facts["transfer"]),
        "seconds": time.perf_counter() - started,
        **facts,
    }


def typical_slice(facts: Mapping[str, Any]) -> int:
    """The first slice of the largest class, of those between two attention operators if there are any."""
    kinds = [kind for kind in facts["classes"] if 0 < kind["slices"][0] < facts["layers"]]
    largest = max(kinds or facts["classes"], key=lambda kind: len(kind["slices"]))
    return int(largest["slices"][0])


def check_slice(facts: Mapping[str, Any], index: int) -> None:
    """A UserError if there is no such slice."""
    if index > facts["layers"]:
        raise UserError(
            "convert-slice-unknown",
            f"{facts['model']} has no slice {index}; its slices are 0 to {facts['layers']}",
        )


def summary(facts: Mapping[str, Any]) -> dict[str, Any]:
    """One conversion in a line of a table."""
    typical = typical_slice(facts)
    return {
        "family": facts["model"],
        "model_type": facts["model_type"],
        "slices": len(facts["slices"]),
        "classes": len(facts["classes"]),
        "context_bytes": facts["context_bytes"],
        "products": {part["part"]: len(part["products"]) for part in facts["slices"][typical]["products"]},
        "transfer_bytes": facts["transfer"][typical]["bytes"],
        "transfer_agrees": facts["transfer_agrees"],
        "seconds": facts["seconds"],
    }


def _makers(slices: list[dict[str, Any]]) -> dict[str, str]:
    """By the node of each saved value, the operator that made it: the one behind views and conversions."""
    makers: dict[str, str] = {}
    for piece in slices:
        made = {one["result"]: one for part in piece["parts"] for one in part["instructions"]}
        for value in piece["cut"]:
            # A value that is only handed on was named where it was made.
            name = _maker(value["value"], made) if value["value"] in made else value["op"]
            makers.setdefault(value["node"], name)
    return makers


def _maker(value: str, made: Mapping[str, dict[str, Any]]) -> str:
    one = made[value]
    while (one["kind"] == "view" or one["op"] == "to") and one["inputs"]:
        before = one["inputs"][0]
        if before not in made:
            return str(before) if before in {"tokens", "positions"} else str(one["op"])
        one = made[before]
    return str(one["op"])
