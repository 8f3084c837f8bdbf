"""Conversions as plain data: instructions with operator names, and no code.

Data is validated as untrusted input: names must be identifiers, formulas sums and products, and operators in
a list. Source is generated from it as after tracing.
"""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from lamina.convert.codegen import slice_source
from lamina.convert.constants import Computed, Constant, Literal, Parameter
from lamina.convert.program import Instruction, Name, Piece, Program, Rows, Spec, States, Value, take_rows
from lamina.convert.sliced import SlicedModel
from lamina.convert.slices import Carried, Slice, SliceClass
from lamina.convert.states import StateKind, StateSpec
from lamina.operators import AttentionOp

Plain = Any
# Functions besides torch's operators that slices and constants call.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "take_rows": take_rows,
    "States.read": States.read,
    "States.write": States.write,
    **{name: getattr(operator, name) for name in ("getitem", "add", "sub", "mul", "floordiv", "mod", "neg")},
}
_FUNCTION_NAMES = {function: name for name, function in _FUNCTIONS.items()}
# It opens a file.
_REFUSED = frozenset({"from_file"})
_FORMULA = re.compile(r"[B0-9 +*/()-]{1,64}")
_OP = re.compile(r"aten\.(\w+)\.(\w+)")
_KINDS = ("dtype", "memory_format", "layout", "device")
_MOST_LITERAL_BYTES = 64 << 20


class NotStorableError(Exception):
    """A conversion has something that cannot be stored, or data is not a conversion."""


# Writing


def to_plain(model: SlicedModel) -> Plain:
    """Convert a SlicedModel to lists, numbers and strings."""
    return {
        "classes": [[_program(kind.program), list(kind.members)] for kind in model.classes],
        "slices": [
            [
                piece.class_index,
                [str(name) for name in piece.weights],
                [[one.name, one.op, _spec(one.spec), one.bytes] for one in piece.carried],
                list(piece.states),
            ]
            for piece in model.slices
        ],
        "attentions": [msgspec.to_builtins(op) for op in model.attentions],
        "cut_bytes": list(model.cut_bytes),
        "constants": [[str(name), _constant(one)] for name, one in model.constants.items()],
        "tables": [[name, _tensor(table)] for name, table in model.tables.items()],
        "states": [
            [one.layer, one.kind, one.place, list(one.shape), _word(one.dtype)] for one in model.states
        ],
    }


def _program(program: Program) -> Plain:
    return {
        "context": [_value(value) for value in program.context],
        "attended": None if program.attended is None else _value(program.attended),
        "weights": [_value(value) for value in program.weights],
        "pieces": [
            [piece.name, [_instruction(one) for one in piece.instructions], list(map(str, piece.gives))]
            for piece in program.pieces
        ],
        "specs": [[str(name), _spec(spec)] for name, spec in program.specs.items()],
        "bound": list(map(str, program.bound)),
    }


def _value(value: Value) -> Plain:
    return [str(value.name), _spec(value.spec)]


def _spec(spec: Spec) -> Plain:
    return [list(spec.dims), _word(spec.dtype), spec.bytes]


def _instruction(one: Instruction) -> Plain:
    kwargs = [[name, _argument(value)] for name, value in one.kwargs.items()]
    spec = None if one.spec is None else _spec(one.spec)
    return [str(one.result), _operator(one.op), [_argument(value) for value in one.args], kwargs, spec]


def _operator(op: Callable[..., Any]) -> str:
    if isinstance(op, torch._ops.OpOverload):
        name = str(op)
        if _OP.fullmatch(name):
            return name
    elif op in _FUNCTION_NAMES:
        return _FUNCTION_NAMES[op]
    raise NotStorableError(f"the operator {op}")


def _argument(value: Any) -> Plain:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Name):
        return ["name", str(value)]
    if isinstance(value, str):
        return ["text", value]
    if isinstance(value, (list, tuple)):
        return ["list" if isinstance(value, list) else "tuple", [_argument(one) for one in value]]
    if isinstance(value, Rows):
        if value.start is None:
            return ["rows", value.index.tolist()]
        return ["range", value.start, len(value)]
    for kind in _KINDS:
        if isinstance(value, getattr(torch, kind)):
            return [kind, _word(value)]
    raise NotStorableError(f"{type(value).__name__} among arguments")


def _word(value: object) -> str:
    return str(value).removeprefix("torch.")


def _constant(one: Constant) -> Plain:
    if isinstance(one, Parameter):
        return ["parameter", one.name, list(one.aliases), list(one.shape), _word(one.dtype)]
    if isinstance(one, Literal):
        return ["literal", one.name, _tensor(one.tensor)]
    kwargs = [[name, _argument(value)] for name, value in one.kwargs.items()]
    return ["computed", _operator(one.op), [_argument(value) for value in one.args], kwargs]


def _tensor(tensor: Tensor) -> Plain:
    if tensor.is_meta or tensor.nbytes > _MOST_LITERAL_BYTES:
        raise NotStorableError("a table of that size")
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor
    return [_word(tensor.dtype), list(tensor.shape), flat.numpy().tobytes() if tensor.numel() else b""]


# Reading


def from_plain(plain: Plain) -> SlicedModel:
    """Convert plain data back to a SlicedModel; invalid data raises an exception of any type."""
    programs = [_read_program(one) for one, _ in plain["classes"]]
    members = [tuple(map(_number, of_class)) for _, of_class in plain["classes"]]
    slices = tuple(_read_slice(at, one, programs) for at, one in enumerate(plain["slices"]))
    classes = tuple(
        SliceClass(number, program, slice_source(program), indices)
        for number, (program, indices) in enumerate(zip(programs, members, strict=True))
    )
    of_class = {at: number for number, indices in enumerate(members) for at in indices}
    if of_class != {one.index: one.class_index for one in slices} or not (
        len(slices) - 1 == len(plain["attentions"]) == len(plain["cut_bytes"])
    ):
        raise NotStorableError("slices and classes do not fit")
    return SlicedModel(
        slices=slices,
        classes=classes,
        attentions=tuple(msgspec.convert(one, AttentionOp) for one in plain["attentions"]),
        cut_bytes=tuple(map(_number, plain["cut_bytes"])),
        constants={_name(name): _read_constant(one) for name, one in plain["constants"]},
        tables={_text(name): _read_tensor(one) for name, one in plain["tables"]},
        states=tuple(
            StateSpec(
                _number(layer), msgspec.convert(kind, StateKind), _number(place), _shape(shape), _dtype(word)
            )
            for layer, kind, place, shape, word in plain["states"]
        ),
    )


def _read_slice(at: int, plain: Plain, programs: list[Program]) -> Slice:
    number, weights, carried, states = plain
    return Slice(
        at,
        programs[_number(number)],
        tuple(map(_name, weights)),
        tuple(
            Carried(_text(name), _text(op), _read_spec(spec), _number(size))
            for name, op, spec, size in carried
        ),
        tuple(map(_number, states)),
        _number(number),
    )


def _read_program(plain: Plain) -> Program:
    attended = plain["attended"]
    return Program(
        tuple(map(_read_value, plain["context"])),
        None if attended is None else _read_value(attended),
        tuple(map(_read_value, plain["weights"])),
        tuple(
            Piece(_name(name), tuple(map(_read_instruction, code)), tuple(map(_name, gives)))
            for name, code, gives in plain["pieces"]
        ),
        {_name(name): _read_spec(spec) for name, spec in plain["specs"]},
        tuple(map(_name, plain["bound"])),
    )


def _read_value(plain: Plain) -> Value:
    name, spec = plain
    return Value(_name(name), _read_spec(spec))


def _read_spec(plain: Plain) -> Spec:
    dims, word, size = plain
    for one in dims:
        if not (isinstance(one, int) or _FORMULA.fullmatch(_text(one))):
            raise NotStorableError(f"the dimension {one!r}")
    return Spec(tuple(dims), _dtype(word), _number(size))


def _read_instruction(plain: Plain) -> Instruction:
    result, op, args, kwargs, spec = plain
    return Instruction(
        _name(result),
        _read_operator(op),
        *_read_arguments(args, kwargs),
        None if spec is None else _read_spec(spec),
    )


def _read_arguments(args: Plain, kwargs: Plain) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    named = {str(_name(name)): _read_argument(value) for name, value in kwargs}
    return tuple(map(_read_argument, args)), named


def _read_operator(name: Plain) -> Callable[..., Any]:
    if result := _FUNCTIONS.get(name):
        return result
    known = _OP.fullmatch(_text(name))
    if known is None or known[1] in _REFUSED:
        raise NotStorableError(f"the operator {name!r}")
    op = getattr(getattr(torch.ops.aten, known[1]), known[2])
    assert isinstance(op, torch._ops.OpOverload)
    return op


def _read_argument(plain: Plain) -> Any:
    if plain is None or isinstance(plain, (bool, int, float)):
        return plain
    kind, value, *more = plain
    match kind:
        case "name":
            return _name(value)
        case "text":
            return _text(value)
        case "list":
            return [_read_argument(one) for one in value]
        case "tuple":
            return tuple(_read_argument(one) for one in value)
        case "range":
            return Rows(torch.arange(_number(value), value + _number(*more)))
        case "rows":
            return Rows(torch.tensor(list(map(_number, value)), dtype=torch.int64))
        case "device":
            return torch.device(_text(value))
        case "dtype" | "memory_format" | "layout":
            result = getattr(torch, _text(value))
            assert isinstance(result, getattr(torch, kind))
            return result
    raise NotStorableError(f"an argument of kind {kind!r}")


def _read_constant(plain: Plain) -> Constant:
    kind, *rest = plain
    match kind:
        case "parameter":
            name, aliases, shape, word = rest
            return Parameter(_text(name), tuple(map(_text, aliases)), _shape(shape), _dtype(word))
        case "literal":
            name, tensor = rest
            return Literal(_text(name), _read_tensor(tensor))
        case "computed":
            op, args, kwargs = rest
            return Computed(_read_operator(op), *_read_arguments(args, kwargs))
    raise NotStorableError(f"a constant of kind {kind!r}")


def _read_tensor(plain: Plain) -> Tensor:
    word, shape, data = plain
    flat = (
        torch.frombuffer(bytearray(data), dtype=_dtype(word)) if data else torch.empty(0, dtype=_dtype(word))
    )
    return flat.view(_shape(shape))


def _name(value: Plain) -> Name:
    """Validate a name, which becomes part of generated source."""
    if not (isinstance(value, str) and value.isidentifier() and value.isascii()) or keyword.iskeyword(value):
        raise NotStorableError(f"the name {value!r}")
    return Name(value)


def _text(value: Plain) -> str:
    if not isinstance(value, str):
        raise NotStorableError(f"{value!r} in the place of a text")
    return value


def _number(value: Plain) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise NotStorableError(f"{value!r} in the place of a number")
    return value


def _shape(values: Iterable[Plain]) -> tuple[int, ...]:
    return tuple(map(_number, values))


def _dtype(word: Plain) -> torch.dtype:
    result = getattr(torch, _text(word))
    assert isinstance(result, torch.dtype)
    return result
