"""Names of a slice's matrix products."""

from __future__ import annotations

from lamina.convert.describe import InstructionFacts, PartFacts
from laminabench.conversion.products import products_of


def product(weight: str) -> InstructionFacts:
    return {
        "result": "addmm_1",
        "op": "addmm",
        "kind": "product",
        "inputs": ["context_1"],
        "weights": [{"name": weight, "type": "float32[64, 64]"}],
        "type": "float32[B, 64]",
        "bytes": 256,
    }


def test_two_products_of_one_short_name_get_a_word_more() -> None:
    """GPT-2 calls the last product of attention and that of the MLP c_proj."""
    weights = [f"transformer.h.0.{name}.weight" for name in ("attn.c_proj", "mlp.c_fc", "mlp.c_proj")]
    rest: PartFacts = {"name": "rest", "instructions": [product(weight) for weight in weights], "gives": []}
    (part,) = products_of([rest])
    assert [one["name"] for one in part["products"]] == ["attn.c_proj", "c_fc", "mlp.c_proj"]
