"""A conversion in plain data: for a table, for JSON, and for a drawing that somebody else makes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lamina.convert.codegen import describe_spec
from lamina.convert.constants import Computed
from lamina.convert.conversion import Conversion
from lamina.convert.program import Instruction, Name, Program
from lamina.convert.slices import Slice
from lamina.operators import AttentionOp

# Matrix products: what takes a model worker's time, and what its overlap with messages is counted in.
_PRODUCTS = frozenset({"linear", "addmm", "mm", "bmm", "matmul", "_grouped_mm", "baddbmm"})
# Operators that move no data.
_VIEWS = frozenset(
    {
        *(
            "view",
            "_unsafe_view",
            "transpose",
            "permute",
            "unsqueeze",
            "squeeze",
            "expand",
            "slice",
            "select",
        ),
        *("chunk", "split", "getitem", "contiguous", "reshape"),
    }
)


def describe(conversion: Conversion) -> dict[str, Any]:
    """All there is to say of a conversion, ready for JSON."""
    return {
        "model_type": conversion.config.model_type,
        "dtype": str(conversion.dtype).removeprefix("torch."),
        "rope": conversion.rope,
        "vocab_size": conversion.vocab_size,
        "max_positions": conversion.max_positions,
        "eos_token_ids": list(conversion.eos_token_ids),
        "attentions": [asdict(op) for op in conversion.attentions],
        "transfer": [transfer(conversion, op, conversion.dtype.itemsize) for op in conversion.attentions],
        "classes": [
            {"index": kind.index, "slices": list(kind.members), "source": kind.source}
            for kind in conversion.classes
        ],
        "slices": [describe_slice(conversion, piece) for piece in conversion.slices],
    }


def describe_slice(conversion: Conversion, piece: Slice) -> dict[str, Any]:
    """One slice: its instructions in order, what goes in and out, and which products overlap with what."""
    program = piece.program
    inputs = [*program.context, *(() if program.attended is None else (program.attended,))]
    cut = conversion.cut_bytes[piece.index] if piece.index < len(conversion.cut_bytes) else 0
    return {
        "index": piece.index,
        "class": piece.class_index,
        "inputs": [_value(value.name, program) for value in inputs],
        "parts": [
            {
                "name": part.name,
                "instructions": [_instruction(conversion, piece, one) for one in part.instructions],
                "gives": [_value(name, program) for name in part.gives],
            }
            for part in program.pieces
        ],
        "products": {
            part.name: [str(one.result) for one in part.instructions if one.op_name in _PRODUCTS]
            for part in program.pieces
        },
        "cut": [
            {
                "value": str(name),
                "node": value.name,
                "op": value.op,
                "type": describe_spec(value.spec),
                "bytes": value.bytes,
            }
            for name, value in zip(program.pieces[-1].gives, piece.carried, strict=False)
        ],
        "cut_bytes": cut,
    }


def transfer(conversion: Conversion, op: AttentionOp, element_bytes: int) -> dict[str, Any]:
    """Bytes between model and attention workers for one token and layer, counted and by the paper's formula.

    Counted: what the slice before sends and the slice behind takes. By the formula: (2 + 2/G) e d, with G
    query heads to a KV head, e bytes an element, and d the width of q.
    """
    before, after = (conversion.slices[op.layer + step].program for step in (0, 1))
    query, key, value = (before.specs[name].bytes for piece in before.pieces[:2] for name in piece.gives)
    assert after.attended is not None
    attended = after.attended.spec.bytes
    counted = query + key + value + attended
    group, width = op.heads / op.kv_heads, op.heads * op.head_dim
    formula = (2 + 2 / group) * element_bytes * width
    return {
        "layer": op.layer,
        "q_bytes": query,
        "k_bytes": key,
        "v_bytes": value,
        "attended_bytes": attended,
        "bytes": counted,
        "formula": f"(2 + 2/{group:g}) x {element_bytes} x {width:,}",
        "formula_bytes": formula,
        "agrees": abs(counted - formula) < 0.5,
    }


def drawing(conversion: Conversion, index: int) -> dict[str, list[dict[str, Any]]]:
    """Nodes and edges of one slice with the attention operators around it, for a picture.

    Node kinds: input, product, view, op, attention, output. An edge has the bytes of one request, and says
    whether it is cut: whether its value is saved from one slice to the next.
    """
    piece = conversion.slices[index]
    program = piece.program
    nodes: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []
    parts = {one.result: part.name for part in program.pieces for one in part.instructions}
    before = {value.name for value in program.context}
    if program.attended is not None:
        nodes.append(
            {"name": str(program.attended.name), "op": "attention", "kind": "attention", "part": "before"}
        )
    for value in program.context:
        kind = "input" if value.name in {"tokens", "positions"} else "context"
        nodes.append({"name": str(value.name), "op": kind, "kind": "input", "part": "before"})
    weights = {value.name for value in program.weights}
    for part in program.pieces:
        for one in part.instructions:
            nodes.append(
                {"name": str(one.result), "op": one.op_name, "kind": _kind(one), "part": parts[one.result]}
            )
            for name in dict.fromkeys(one.uses()):
                if name not in weights:
                    edges.append(_edge(name, str(one.result), program, cut=name in before))
        if part.name in {"query", "keyvalue"}:
            edges += [_edge(name, "attention", program, cut=False) for name in part.gives]
        else:
            end = "logits" if part.name == "logits" else "next"
            nodes.append({"name": end, "op": end, "kind": "output", "part": "after"})
            edges += [_edge(name, end, program, cut=part.name == "rest") for name in part.gives]
    if index < len(conversion.attentions):
        nodes.append({"name": "attention", "op": "attention", "kind": "attention", "part": "after"})
    return {"nodes": nodes, "edges": edges}


def _edge(name: Name, to: str, program: Program, *, cut: bool) -> dict[str, Any]:
    spec = program.specs.get(name)
    return {"from": str(name), "to": to, "bytes": 0 if spec is None else spec.bytes, "cut": cut}


def _kind(one: Instruction) -> str:
    return "product" if one.op_name in _PRODUCTS else "view" if one.op_name in _VIEWS else "op"


def _value(name: Name, program: Program) -> dict[str, Any]:
    spec = program.specs[name]
    return {"name": str(name), "type": describe_spec(spec), "bytes": spec.bytes}


def _instruction(conversion: Conversion, piece: Slice, one: Instruction) -> dict[str, Any]:
    bound = dict(zip((value.name for value in piece.program.weights), piece.weights, strict=True))
    used = [name for name in dict.fromkeys(one.uses()) if name in bound]
    return {
        "result": str(one.result),
        "op": one.op_name,
        "kind": _kind(one),
        "inputs": [str(name) for name in dict.fromkeys(one.uses()) if name not in bound],
        "weights": [
            {"name": weight_name(conversion, bound[name]), "type": describe_spec(piece.program.specs[name])}
            for name in used
        ],
        "type": None if one.spec is None else describe_spec(one.spec),
        "bytes": 0 if one.spec is None else one.spec.bytes,
    }


def weight_name(conversion: Conversion, name: Name) -> str:
    """What a constant is to the model: a parameter's name, rows of it, or what it is computed from."""
    constant = conversion.constants[name]
    if not isinstance(constant, Computed):
        return constant.name
    first = next(constant.uses(), None)
    source = "" if first is None else weight_name(conversion, first)
    if constant.op.__name__ == "take_rows":
        _, dim, rows = constant.args
        return f"{source}[{', :' * dim}{rows!r}]".replace("[, :", "[:, ")
    return f"{constant.op.__name__.partition('.')[0]}({source})"
