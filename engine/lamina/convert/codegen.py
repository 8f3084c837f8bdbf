"""Generate Python source from a slice's program: one function per piece, with weights as closure variables.

A slice has tens of operators of a few microseconds each, so the form of each call matters: tensor methods,
arithmetic and torch's built-in functions cost less than an OpOverload object. The tables list these; other
operators are called as they were traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lamina.convert.packing import linear
from lamina.convert.program import Collective, Instruction, Name, Piece, Program, Spec, States

_aten = torch.ops.aten
_nn = torch._C._nn
# Tensor methods and built-ins that take the same arguments in the same order as the operator of that name.
_METHODS: dict[Any, str] = {
    op: op.__name__.partition(".")[0]
    for op in (
        *(_aten.transpose.int, _aten.permute.default, _aten.unsqueeze.default, _aten.squeeze.dim),
        *(_aten.contiguous.default, _aten.select.int, _aten.to.dtype, _aten.rsqrt.default, _aten.cos.default),
        *(_aten.sin.default, _aten.tanh.default, _aten.sigmoid.default, _aten.mean.dim),
        *(_aten.sum.dim_IntList, _aten.chunk.default, _aten.view.default, _aten.reshape.default),
        *(_aten.expand.default, Collective.all_reduce, Collective.all_gather, States.read, States.write),
    )
} | {_aten._unsafe_view.default: "view"}
_TAKE_SIZES = frozenset({"view", "reshape", "expand", "permute"})
_OPERATORS: dict[Any, str] = {
    _aten.add.Tensor: "+",
    _aten.sub.Tensor: "-",
    _aten.mul.Tensor: "*",
    _aten.div.Tensor: "/",
    _aten.pow.Tensor_Scalar: "**",
}
_BUILTINS: dict[Any, Callable[..., Any]] = {
    _aten.linear.default: linear,
    _aten.silu.default: _nn.silu,
    _aten.gelu.default: _nn.gelu,
} | {
    op: getattr(torch, op.__name__.partition(".")[0])
    for op in (
        *(_aten.relu.default, _aten.embedding.default, _aten.layer_norm.default, _aten.cat.default),
        *(_aten.addmm.default, _aten.softmax.int, _aten.topk.default, _aten.matmul.default),
        _aten.bmm.default,
    )
}


@dataclass
class Code:
    """Python source and the objects that its global names stand for."""

    text: str
    names: dict[str, object] = field(repr=False)
    operators: frozenset[str] = frozenset()  # full names, since the text has bare ones

    def function(self, name: str, file: str) -> Any:
        """Compile the source and return the function `name`."""
        space = dict(self.names)
        exec(compile(self.text, file, "exec"), space)
        return space[name]


def bind_lines(program: Program, bodies: Sequence[Sequence[str]], comments: Sequence[str] = ()) -> str:
    """Return the source of `bind(device, weights...)`, which returns the functions of the slice's pieces.

    `bodies` has the statements of each piece between unpacking its arguments and returning. Other objects
    bound once are parameters between the device and the weights.
    """
    given = ["device", *program.bound, *(value.name for value in program.weights)]
    lines = [f"def bind({', '.join(given)}):", *(f"    {comment}" for comment in comments)]
    for position, body in enumerate(bodies):
        head, unpacking = _signature_lines(program, position)
        inside = [*unpacking, *body, _return_line(program, position)]
        lines += ["", f"    {head}", *(f"        {line}" for line in inside)]
    names = ", ".join(piece.name for piece in program.pieces)
    lines += ["", f"    return {names}{',' if len(program.pieces) == 1 else ''}", ""]
    return "\n".join(lines)


def slice_source(program: Program) -> Code:
    """Return a slice's program as Python functions."""
    writer = Writer(program)
    comments = [f"# {value.name}: {describe_spec(value.spec)}" for value in program.weights]
    bodies = [writer.body(position, piece) for position, piece in enumerate(program.pieces)]
    return Code(bind_lines(program, bodies, comments), writer.names, frozenset(writer.operators))


def piece_source(piece: Piece, program: Program, inputs: Sequence[Name], gives: Sequence[Name]) -> Code:
    """Return the source of `run(inputs...)` for one piece, weights among its inputs; it returns a tuple."""
    writer = Writer(program)
    body = [writer.statement(instruction) for instruction in piece.instructions]
    lines = [
        f"def run({', '.join(inputs)}):",
        *(f"    {line}" for line in body),
        f"    return {name_tuple(gives)}",
        "",
    ]
    return Code("\n".join(lines), writer.names, frozenset(writer.operators))


def describe_spec(spec: Spec) -> str:
    """Return a tensor's type in a few characters: `bfloat16[B, 1, 4096]`."""
    return f"{str(spec.dtype).removeprefix('torch.')}[{', '.join(map(str, spec.dims))}]"


def _signature_lines(program: Program, position: int) -> tuple[str, list[str]]:
    """Return the `def` line of a piece and the lines that unpack its arguments."""
    piece = program.pieces[position]
    if position == 0:
        attended = program.attended.name if program.attended else "attended=None"
        context = [value.name for value in program.context]
        return f"def {piece.name}(context, {attended}):", [
            f"{name_tuple(context)} = context"
        ] if context else []
    live = program.live_after(position - 1)
    return f"def {piece.name}(state):", [f"{name_tuple(live)} = state"] if live else []


def _return_line(program: Program, position: int) -> str:
    """Return a piece's `return` line: the tensors that are sent, then the values that later pieces need."""
    piece = program.pieces[position]
    if piece.name == "logits":
        return f"return {piece.gives[0]}"
    if piece.name == "rest":
        return f"return {name_tuple(piece.gives)}"
    return f"return {', '.join(piece.gives)}, {name_tuple(program.live_after(position))}"


class Writer:
    """Turns instructions into statements, and collects the global names these need."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.names: dict[str, object] = {}
        self.operators: set[str] = set()

    def body(self, position: int, piece: Piece) -> list[str]:
        body = []
        doomed = self._last_uses(position, piece)
        for instruction in piece.instructions:
            body.append(self.statement(instruction))
            if dead := doomed.get(instruction.result):
                body.append(f"del {', '.join(dead)}")
        return body

    def _last_uses(self, position: int, piece: Piece) -> dict[Name, list[Name]]:
        """Return the values to delete after each instruction: with large batches they occupy much memory."""
        live = {*self._program.live_after(position), *piece.gives}
        made = {instruction.result for instruction in piece.instructions}
        last: dict[Name, Name] = {}
        for instruction in piece.instructions:
            for name in instruction.uses():
                if name in made and name not in live:
                    last[name] = instruction.result
        doomed: dict[Name, list[Name]] = {}
        for name, at in last.items():
            doomed.setdefault(at, []).append(name)
        return doomed

    def statement(self, instruction: Instruction) -> str:
        return f"{instruction.result} = {self._expression(instruction)}"

    def _expression(self, instruction: Instruction) -> str:
        op, args, kwargs = instruction.op, instruction.args, instruction.kwargs
        if op in _OPERATORS and not kwargs and len(args) == 2:
            return f"{self._text(args[0])} {_OPERATORS[op]} {self._text(args[1])}"
        if op is _aten.neg.default:
            return f"-{self._text(args[0])}"
        if op is _aten.slice.Tensor and (narrowed := self._narrow(instruction)):
            return narrowed
        if op is _aten.sym_size.int:
            return f"{self._text(args[0])}.shape[{args[1]}]"
        if getattr(op, "__name__", "") == "getitem" and not hasattr(op, "_schema"):
            return f"{self._text(args[0])}[{self._text(args[1])}]"
        if op in _METHODS:
            method = _METHODS[op]
            return f"{self._text(args[0])}.{method}({self._arguments(_spread(method, args[1:]), kwargs)})"
        return f"{self._callable(instruction)}({self._arguments(args, kwargs)})"

    def _narrow(self, instruction: Instruction) -> str | None:
        source, dim, start, *rest = (*instruction.args, *(None,) * 5)[:5]
        length = instruction.spec.dims[dim] if instruction.spec is not None and isinstance(dim, int) else None
        if not isinstance(start, int) or start < 0 or not isinstance(length, int) or rest[1] not in (None, 1):
            return None
        return f"{self._text(source)}.narrow({dim}, {start}, {length})"

    def _callable(self, instruction: Instruction) -> str:
        op = _BUILTINS.get(instruction.op, instruction.op)
        name = instruction.op_name
        while self.names.get(name, op) is not op:  # two overloads of one operator
            name += "_"
        self.names[name] = op
        self.operators.add(f"{name} = {_full_name(instruction.op)}")
        return name

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        words = [self._text(arg) for arg in args]
        return ", ".join(words + [f"{key}={self._text(value)}" for key, value in kwargs.items()])

    def _text(self, value: Any) -> str:
        if isinstance(value, Name):
            return str(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self._text(item) for item in value)}]"
        if isinstance(value, torch.device):
            return "device"
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            name = str(value).removeprefix("torch.")
            self.names[name] = value
            return name
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        raise AssertionError(f"{value!r} has no source")


def _spread(method: str, args: Sequence[Any]) -> Sequence[Any]:
    """Pass sizes as separate arguments where possible, which is cheaper than a list."""
    if method in _TAKE_SIZES and len(args) == 1 and isinstance(args[0], (list, tuple)) and args[0]:
        return list(args[0])
    return args


def _full_name(op: Any) -> str:
    """Return `aten.linear.default`, or module and name of a function that is not an operator."""
    if isinstance(op, torch._ops.OpOverload):
        return str(op)
    return f"{getattr(op, '__module__', '')}.{getattr(op, '__qualname__', op)}"


def name_tuple(names: Sequence[str]) -> str:
    """Return the source of a tuple of names."""
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
