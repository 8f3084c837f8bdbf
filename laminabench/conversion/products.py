"""The matrix products of a part of a slice, under names short enough for a table and a picture."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from lamina.convert.describe import InstructionFacts, PartFacts

ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
# As lamina.convert.describe writes rows of a fused weight: [0:512], [:, 0:512] or [0:64 and 7 more like it].
_ROWS = re.compile(r"(\[[^\]]*\])$")
_MORE = re.compile(r" and \d+ more like it")


class Product(TypedDict):
    result: str
    name: str
    weight: str | None
    shape: list[int]
    weight_bytes: int


class PartProducts(TypedDict):
    part: str
    operators: int
    products: list[Product]
    weight_bytes: int


def products_of(parts: Iterable[PartFacts]) -> list[PartProducts]:
    """Return for each part of a slice its operators and products with their weights' names, shapes, bytes."""
    described: list[PartProducts] = []
    for part in parts:
        instructions = part["instructions"]
        products = [_product(one) for one in instructions if one["kind"] == "product"]
        described.append(
            {
                "part": part["name"],
                "operators": sum(one["kind"] != "view" and not is_size(one) for one in instructions),
                "products": products,
                "weight_bytes": sum(product["weight_bytes"] for product in products),
            }
        )
    _make_unique([product for part in described for product in part["products"]])
    return described


def is_size(one: InstructionFacts) -> bool:
    """Return whether an instruction computes with the size of the batch instead of with a tensor."""
    return one["op"] == "sym_size" or (one["type"] is None and not one["inputs"])


def weight_shape(kind: str) -> tuple[int, ...]:
    """Return `bfloat16[512, 128]` as (512, 128)."""
    return tuple(int(size) for size in kind.partition("[")[2].rstrip("]").split(",") if size.strip())


def short_name(name: str, words: int = 1) -> str:
    """Return a weight's last names, and its rows if not all: `q_proj`, `query_key_value[0:64 …]`."""
    # transpose(model.layers.0.mlp.experts.down_proj): how it is laid out is not its name.
    name = name.rpartition("(")[2].rstrip(")")
    rows = _ROWS.search(name)
    plain = (name[: rows.start()] if rows else name).removesuffix(".weight").removesuffix(".bias")
    parts = [part for part in plain.split(".") if not part.isdigit()]
    short = ".".join(parts[-words:])
    if rows is None:
        return short
    return short + _MORE.sub(" …", rows[1]).replace("[:, ", "[")


def _product(one: InstructionFacts) -> Product:
    matrices = [weight for weight in one["weights"] if len(weight_shape(weight["type"])) > 1]
    if not matrices:
        return {"result": one["result"], "name": one["op"], "weight": None, "shape": [], "weight_bytes": 0}
    weight = matrices[0]
    shape = weight_shape(weight["type"])
    return {
        "result": one["result"],
        "name": short_name(weight["name"]),
        "weight": weight["name"],
        "shape": list(shape),
        "weight_bytes": math.prod(shape) * ELEMENT_BYTES[weight["type"].partition("[")[0]],
    }


def _make_unique(products: list[Product]) -> None:
    """Lengthen equal names: GPT-2 calls two weights of a layer c_proj."""
    often = Counter(product["name"] for product in products)
    for product in products:
        if product["weight"] is not None and often[product["name"]] > 1:
            product["name"] = short_name(product["weight"], words=2)
