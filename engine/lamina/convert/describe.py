"""A conversion as plain data, ready for JSON, tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TypedDict

from lamina.convert.codegen import describe_spec
from lamina.convert.constants import weight_name
from lamina.convert.conversion import Conversion
from lamina.convert.fuse import Fusing
from lamina.convert.program import PRODUCTS, Instruction, Name, Program
from lamina.convert.slices import Slice
from lamina.operators import AttentionOp

# Operators that move no data.
_VIEWS = frozenset(
    {
        *("view", "_unsafe_view", "transpose", "permute", "unsqueeze", "squeeze", "expand", "contiguous"),
        *("slice", "select", "chunk", "split", "getitem", "reshape"),
    }
)


class ValueFacts(TypedDict):
    """A value that goes into a slice or out of it."""

    name: str
    type: str
    bytes: int


class WeightFacts(TypedDict):
    """A weight by its name in the model."""

    name: str
    type: str


class InstructionFacts(TypedDict):
    """One operator; `kind` is product, view or op."""

    result: str
    op: str
    kind: str
    inputs: list[str]
    weights: list[WeightFacts]
    type: str | None
    bytes: int


class PartFacts(TypedDict):
    """A part of a slice between two messages: query, keyvalue, rest or logits."""

    name: str
    instructions: list[InstructionFacts]
    gives: list[ValueFacts]


class SavedFacts(TypedDict):
    """A value of the context that is saved around attention; `node` is its name in the traced graph."""

    value: str
    node: str
    op: str
    type: str
    bytes: int
    made_by: str  # the operator behind views and conversions


SliceFacts = TypedDict(
    "SliceFacts",
    {
        "index": int,
        "class": int,
        "inputs": list[ValueFacts],
        "parts": list[PartFacts],
        "cut": list[SavedFacts],
        "cut_bytes": int,
    },
)


class ClassFacts(TypedDict):
    """Slices of one structure."""

    index: int
    slices: list[int]
    source: str
    fused: dict[str, int]  # patterns replaced by native operators on a CPU, in each slice


class StateFacts(TypedDict):
    """A recurrent layer's state of one request; `layer` counts all layers of the model."""

    layer: int
    kind: str
    type: str
    bytes: int


class TransferFacts(TypedDict):
    """Bytes that one token moves between model and attention workers in one layer."""

    layer: int
    q_bytes: int
    k_bytes: int
    v_bytes: int
    attended_bytes: int
    bytes: int
    formula: str
    formula_bytes: float
    agrees: bool


class ConversionOverview(TypedDict):
    """A conversion without its slices."""

    model_type: str
    dtype: str
    rope: str
    vocab_size: int
    max_positions: int | None  # None where the model's own is not known
    eos_token_ids: list[int] | None
    attentions: list[dict[str, float | str]]  # each AttentionOp; constants as the model calls them
    transfer: list[TransferFacts]
    states: list[StateFacts]
    state_bytes: int  # of all of them, for one request
    classes: list[ClassFacts]


class ConversionFacts(ConversionOverview):
    """A conversion with its slices."""

    slices: list[SliceFacts]


def describe(conversion: Conversion) -> ConversionFacts:
    """Return a conversion with all its slices as plain data."""
    slices = [_slice(conversion, piece) for piece in conversion.slices]
    _name_makers(slices)
    return {
        "model_type": conversion.config.model_type,
        "dtype": str(conversion.dtype).removeprefix("torch."),
        "rope": conversion.rope,
        "vocab_size": conversion.vocab_size,
        "max_positions": conversion.max_positions,
        "eos_token_ids": list(conversion.eos_token_ids),
        "attentions": [_attention(conversion, op) for op in conversion.attentions],
        "transfer": [transfer(conversion, op, conversion.dtype.itemsize) for op in conversion.attentions],
        "states": [
            {"layer": one.layer, "kind": one.kind, "type": describe_spec(one.spec), "bytes": one.spec.bytes}
            for one in conversion.states
        ],
        "state_bytes": conversion.state_bytes,
        "classes": [
            {
                "index": kind.index,
                "slices": list(kind.members),
                "source": kind.source,
                "fused": kind.fused(Fusing(merge=False)).counts,
            }
            for kind in conversion.classes
        ],
        "slices": slices,
    }


def _attention(conversion: Conversion, op: AttentionOp) -> dict[str, float | str]:
    fields: dict[str, float | str] = asdict(op)
    for field in ("sinks", "to_keys", "to_values"):
        if name := fields[field]:
            fields[field] = weight_name(conversion.constants, Name(str(name)))
    return fields


def _slice(conversion: Conversion, piece: Slice) -> SliceFacts:
    """Return one slice: its instructions in order, inputs and outputs."""
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
        "cut": [
            {
                "value": str(name),
                "node": value.name,
                "op": value.op,
                "type": describe_spec(value.spec),
                "bytes": value.bytes,
                "made_by": value.op,
            }
            for name, value in zip(program.pieces[-1].gives, piece.carried, strict=False)
        ],
        "cut_bytes": cut,
    }


def _name_makers(slices: list[SliceFacts]) -> None:
    """Fill in which operator made each saved value: a slice may pass on a value of an earlier one."""
    makers: dict[str, str] = {}
    for piece in slices:
        made = {one["result"]: one for part in piece["parts"] for one in part["instructions"]}
        for value in piece["cut"]:
            name = _maker(value["value"], made) if value["value"] in made else value["op"]
            value["made_by"] = makers.setdefault(value["node"], name)


def _maker(value: str, made: Mapping[str, InstructionFacts]) -> str:
    one = made[value]
    while (one["kind"] == "view" or one["op"] == "to") and one["inputs"]:
        before = one["inputs"][0]
        if before not in made:
            return before if before in {"tokens", "positions"} else one["op"]
        one = made[before]
    return one["op"]


def transfer(conversion: Conversion, op: AttentionOp, element_bytes: int) -> TransferFacts:
    """Return the bytes between workers per token and layer, counted and by the paper's formula.

    Counted are the values that the slice before sends and the slice after receives. The formula is
    (2 + 2/G) e d with G query heads per KV head, e bytes per element, and d the width of q. Latent KV is one
    vector for all heads, and attention returns vectors of its latent width, unless attention workers absorb.
    """
    before, after = (conversion.slices[op.layer + step].program for step in (0, 1))
    query, key, *others = (before.specs[name].bytes for piece in before.pieces[:2] for name in piece.gives)
    value = sum(others)
    assert after.attended is not None
    attended = after.attended.spec.bytes
    counted = query + key + value + attended
    group, width = op.heads / op.kv_heads, op.heads * op.head_dim
    formula = (2 + 2 / group) * element_bytes * width
    words = f"(2 + 2/{group:g}) x {element_bytes} x {width:,}"
    if op.latent:
        formula = element_bytes * (op.heads * (op.query_dim + op.output_dim) + op.head_dim)
        words = f"{element_bytes} x ({op.heads} x ({op.query_dim} + {op.output_dim}) + {op.head_dim})"
    return {
        "layer": op.layer,
        "q_bytes": query,
        "k_bytes": key,
        "v_bytes": value,
        "attended_bytes": attended,
        "bytes": counted,
        "formula": words,
        "formula_bytes": formula,
        "agrees": abs(counted - formula) < 0.5,
    }


def _kind(one: Instruction) -> str:
    return "product" if one.op_name in PRODUCTS else "view" if one.op_name in _VIEWS else "op"


def _value(name: Name, program: Program) -> ValueFacts:
    spec = program.specs[name]
    return {"name": str(name), "type": describe_spec(spec), "bytes": spec.bytes}


def _instruction(conversion: Conversion, piece: Slice, one: Instruction) -> InstructionFacts:
    bound = dict(zip((value.name for value in piece.program.weights), piece.weights, strict=True))
    used = [name for name in dict.fromkeys(one.uses()) if name in bound]
    return {
        "result": str(one.result),
        "op": one.op_name,
        "kind": _kind(one),
        "inputs": [str(name) for name in dict.fromkeys(one.uses()) if name not in bound],
        "weights": [
            {
                "name": weight_name(conversion.constants, bound[name]),
                "type": describe_spec(piece.program.specs[name]),
            }
            for name in used
        ],
        "type": None if one.spec is None else describe_spec(one.spec),
        "bytes": 0 if one.spec is None else one.spec.bytes,
    }
