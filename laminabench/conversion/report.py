"""Convert a model and describe the result, ready for JSON. Needs the `engine` extra."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypedDict

import torch
import transformers

from lamina.convert import Conversion, ConversionError, convert, describe
from lamina.convert.describe import ConversionOverview, SliceFacts, transfer
from laminabench.catalog.find_model import ASSUMED
from laminabench.conversion.products import ELEMENT_BYTES, PartProducts, products_of
from laminabench.conversion.source import ModelSource
from laminabench.util.errors import UserError
from laminabench.util.gc_paused import gc_paused


def converted(model: ModelSource, dtype: str | None, rope: str, *, keep: bool = True) -> Conversion:
    """Cut the model into slices; a UserError gives the reason if it cannot be."""
    try:
        with _quietly():
            source: object = model.config
            if isinstance(source, Mapping):
                source = transformers.AutoConfig.for_model(**source)
            return convert(source, dtype=getattr(torch, dtype) if dtype else None, rope=rope, keep=keep)
    except ConversionError as error:
        raise UserError(error.code, str(error)) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress transformers' advice on special tokens, and searching of a growing graph for garbage."""
    log = transformers.logging
    level = log.get_verbosity()
    log.set_verbosity_error()
    try:
        with gc_paused():
            yield
    finally:
        log.set_verbosity(level)


class SliceReport(SliceFacts):
    """A slice with its matrix products by short names."""

    products: list[PartProducts]


class ConversionReport(ConversionOverview):
    """A model's conversion as `laminabench convert --json` prints it."""

    model: str
    origin: str
    shapes_from: str
    assumed: list[str]
    layers: int
    context_bytes: int
    transfer_agrees: bool
    seconds: float
    known: bool  # it was converted before, and cached
    slices: list[SliceReport]


class FamilyRow(TypedDict):
    """A conversion in a line of a table."""

    family: str
    model_type: str
    slices: int
    classes: int
    context_bytes: int
    products: dict[str, int]
    transfer_bytes: int
    transfer_agrees: bool
    state_bytes: int  # that recurrent layers keep of a request
    seconds: float


def report(
    model: ModelSource, dtype: str | None = None, rope: str = "carry", *, keep: bool = True
) -> ConversionReport:
    started = time.perf_counter()
    conversion = converted(model, dtype, rope, keep=keep)
    facts = describe(conversion)
    if model.origin == "catalogue":
        # These two would be transformers' defaults, which are not the model's.
        facts["eos_token_ids"] = None
        if facts["model_type"] != "opt":
            facts["max_positions"] = None
    element = ELEMENT_BYTES[facts["dtype"]]
    moved = [transfer(conversion, op, element) for op in conversion.attentions]
    return {
        **facts,
        "model": model.name,
        "origin": model.origin,
        "shapes_from": model.shapes_from,
        "assumed": list(ASSUMED) if model.origin == "catalogue" else [],
        "layers": len(facts["attentions"]),
        "context_bytes": max(conversion.cut_bytes),
        "transfer": moved,
        "transfer_agrees": all(row["agrees"] for row in moved),
        "slices": [{**piece, "products": products_of(piece["parts"])} for piece in facts["slices"]],
        "seconds": time.perf_counter() - started,
        "known": conversion.known,
    }


def typical_slice(facts: ConversionReport) -> int:
    """Return the first slice of the largest class, between two attention operators if possible."""
    kinds = [kind for kind in facts["classes"] if 0 < kind["slices"][0] < facts["layers"]]
    largest = max(kinds or facts["classes"], key=lambda kind: len(kind["slices"]))
    return largest["slices"][0]


def check_slice(facts: ConversionReport, index: int) -> None:
    if index > facts["layers"]:
        raise UserError(
            "convert-slice-unknown",
            f"{facts['model']} has no slice {index}; its slices are 0 to {facts['layers']}",
        )


def summary(facts: ConversionReport) -> FamilyRow:
    """Return one conversion in a line of a table."""
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
        "state_bytes": facts["state_bytes"],
        "seconds": facts["seconds"],
    }
