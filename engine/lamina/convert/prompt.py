"""A slice with recurrent state for several tokens of one prompt.

Operators between reading a state and writing it depend on the previous token and run token by token. Others
run for all tokens together, like for the requests of a batch: above all products, which then read their
weights once. Adjacent operators whose values are as large as a state also run token by token, since together
they would need a state's memory for every token; so do experts in batched products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.convert.codegen import Code, Writer, name_tuple
from lamina.convert.program import BATCH, PRODUCTS, Instruction, Name, Program, Spec, States

_SIZE = torch.ops.aten.sym_size.int


def prompt_source(program: Program) -> Code:
    """Return the source of `bind`, whose function returns (q,), (k, v) and context, if any."""
    phases = _phases(program)
    writer = Writer(program)
    statements: list[_Statement] = []
    for number, phase in enumerate(phases):
        statements += _in_turn(program, phases, number, writer) if phase.in_turn else _together(phase, writer)
    writer.names["in_turn"] = in_turn
    context, gives = [value.name for value in program.context], _gives(program)
    attended = program.attended.name if program.attended else "attended=None"
    given = ", ".join(["device", *program.bound, *(value.name for value in program.weights)])
    lines = [
        *([f"{name_tuple(context)} = context"] if context else []),
        *_with_ends(statements, {name for part in gives for name in part}),
        f"return {', '.join(name_tuple(part) for part in gives) or None}",
    ]
    head = [f"def bind({given}):", f"    def prompt(context, {attended}):"]
    text = "\n".join([*head, *(f"        {line}" for line in lines), "", "    return prompt", ""])
    return Code(text, writer.names, frozenset(writer.operators))


def in_turn(step: Callable[..., tuple[Tensor, ...]], *rows: Tensor) -> tuple[Tensor, ...]:
    """Run a step for one token after the other and concatenate the results."""
    made = [step(*row) for row in zip(*(torch.split(one, 1) for one in rows), strict=True)]
    return tuple(map(torch.cat, zip(*made, strict=True)))


@dataclass(frozen=True)
class _Phase:
    """Operators that run either for all tokens together or token by token."""

    instructions: list[Instruction]
    in_turn: bool

    @property
    def made(self) -> set[Name]:
        return {one.result for one in self.instructions}


@dataclass(frozen=True)
class _Statement:
    """Source lines with the values that they use and make."""

    lines: list[str]
    uses: set[Name]
    makes: set[Name]


def _gives(program: Program) -> list[tuple[Name, ...]]:
    return [piece.gives for piece in program.pieces if piece.name != "logits"]


def _needed(program: Program) -> Iterable[Instruction]:
    """Return the instructions that run, without those only logits need: a prompt has none."""
    needed = {name for part in _gives(program) for name in part}
    code = []
    for piece in reversed(program.pieces):
        for one in reversed(piece.instructions):
            if one.op is States.write or one.result in needed:
                code.append(one)
                needed.update(one.uses())
    return reversed(code)


def _together(phase: _Phase, writer: Writer) -> Iterable[_Statement]:
    for one in phase.instructions:
        yield _Statement([writer.statement(one)], set(one.uses()), {one.result})


def _in_turn(program: Program, phases: Sequence[_Phase], number: int, writer: Writer) -> Iterable[_Statement]:
    """Write a function of one token and its call for all tokens."""
    phase = phases[number]
    used = {name for one in phase.instructions for name in one.uses()} - phase.made
    rows = [name for name, spec in program.specs.items() if name in used and _rows(spec)]
    rows = rows or [program.inputs()[0]]
    later = {name for other in phases[number + 1 :] for one in other.instructions for name in one.uses()}
    later.update(name for part in _gives(program) for name in part)
    sizes = _sizes(program)
    gives = [one.result for one in phase.instructions if one.result in later and one.result not in sizes]
    step = Name(f"step_{number}")
    code = [*(one for one in sizes.values() if one.result not in phase.made), *phase.instructions]
    body = [f"{one.result} = 1" if one.op is _SIZE else writer.statement(one) for one in code]
    lines = [f"def {step}({', '.join(rows)}):", *(f"    {line}" for line in body)]
    lines.append(f"    return {name_tuple(gives)}")
    call = f"in_turn({', '.join([step, *rows])})"
    lines.append(f"{name_tuple(gives)} = {call}" if gives else call)
    yield _Statement(lines, used, set(gives))


def _with_ends(statements: Sequence[_Statement], retained: set[Name]) -> Iterable[str]:
    made = {name for one in statements for name in one.makes}
    last = {name: number for number, one in enumerate(statements) for name in one.uses if name in made}
    for number, one in enumerate(statements):
        yield from one.lines
        dead = sorted(name for name in one.uses if last.get(name) == number and name not in retained)
        if dead:
            yield f"del {', '.join(dead)}"


def _sizes(program: Program) -> dict[Name, Instruction]:
    """Return the instructions that compute only with the number of tokens."""
    sizes: dict[Name, Instruction] = {}
    for piece in program.pieces:
        for one in piece.instructions:
            uses = list(one.uses())
            derived = one.spec is None and uses and all(name in sizes for name in uses)
            if one.op is _SIZE or derived:
                sizes[one.result] = one
    return sizes


def _rows(spec: Spec) -> bool:
    """Return whether only the first dimension grows with the tokens."""
    return spec.dims[:1] == (BATCH,) and not _grows(spec.dims[1:])


def _grows(dims: Sequence[int | str]) -> bool:
    return any(isinstance(dim, str) for dim in dims)


class _Flow:
    """Data flow of a program without sizes, which every phase computes itself."""

    def __init__(self, program: Program) -> None:
        self.sizes = _sizes(program)
        self.code = [one for one in _needed(program) if one.result not in self.sizes]
        at = {one.result: number for number, one in enumerate(self.code)}
        self.uses = [[at[name] for name in one.uses() if name in at] for one in self.code]
        self.users: list[list[int]] = [[] for _ in self.code]
        for number, used in enumerate(self.uses):
            for one in used:
                self.users[one].append(number)
        self._weights = {value.name for value in program.weights}
        states: dict[int, list[int]] = {}
        for number, instruction in enumerate(self.code):
            if instruction.op in (States.read, States.write):
                states.setdefault(instruction.args[1], []).append(number)
        self.loops = self._loops(states.values())
        self._state_bytes = min(program.specs[self.code[each[0]].result].bytes for each in states.values())

    def _loops(self, states: Iterable[list[int]]) -> list[list[int]]:
        """Return groups of operators that need each other's values, of this token or the one before.

        A state that is written is read for the next token.
        """
        after = [set(users) for users in self.users]
        for each in states:
            for number in each:
                after[number].update(each)
        reach, before = [0] * len(after), [-1]
        while reach != before:  # sets of operators as bits
            before = [*reach]
            for number in reversed(range(len(after))):
                for user in after[number]:
                    reach[number] |= reach[user] | 1 << user
        loops = {
            tuple(other for other in range(len(after)) if reach[number] >> other & reach[other] >> number & 1)
            for number in range(len(after))
        }
        return [list(loop) for loop in loops if loop]

    def stays(self, number: int) -> bool:
        """Return whether a value should stay in its phase: no row per token, or rows as large as a state."""
        spec = self.code[number].spec
        return spec is None or (_grows(spec.dims) and (not _rows(spec) or spec.bytes >= self._state_bytes))

    def product(self, number: int) -> bool:
        one = self.code[number]
        return one.op_name in PRODUCTS and not self._weights.isdisjoint(one.uses())

    def copies(self, number: int) -> bool:
        """Return whether an operator copies weights for every token, as batched products of experts do."""
        one = self.code[number]
        return one.op_name == "index" and one.args[0] in self._weights

    def in_turn(self) -> tuple[set[int], set[int]]:
        """Return the operators that run token by token, and those of them that only make large values."""
        inside = {number for loop in self.loops for number in loop}
        inside |= {number for number in range(len(self.code)) if self.copies(number)}
        for number in range(len(self.code)):
            if not self.product(number) and any(
                one in inside and self.stays(one) for one in self.uses[number]
            ):
                inside.add(number)
        before: set[int] = set()
        for number in reversed(range(len(self.code))):
            users = self.users[number]
            makes = self.code[number].spec is not None and self.stays(number) and number not in inside
            of_tuple = any(self.code[one].spec is None for one in self.uses[number])
            if makes and users and inside.issuperset(users) and not self.product(number) and not of_tuple:
                before.add(number)
                inside.add(number)
        return inside, before


def _phases(program: Program) -> list[_Phase]:
    """Split a program into phases; only one if a value between phases has no row per token."""
    flow = _Flow(program)
    levels = _levels(flow)
    level_of = dict(zip((one.result for one in flow.code), levels, strict=True))
    for one in flow.code:
        for name in one.uses():
            ends = {level_of.get(name, level_of[one.result]), level_of[one.result]}
            if len(ends) > 1 and any(level % 2 for level in ends):
                spec = program.specs.get(name)
                if spec is None or (_grows(spec.dims) and not _rows(spec)):
                    return [_Phase(list(_needed(program)), in_turn=True)]
    phases = [_Phase(list(flow.sizes.values()), in_turn=False)]
    for level in range(max(levels) + 1):
        code = [one for one in flow.code if level_of[one.result] == level]
        phases.append(_Phase(code, in_turn=level % 2 == 1))
    return [phase for phase in phases if phase.instructions]


def _levels(flow: _Flow) -> list[int]:
    """Return each operator's phase; odd phases run token by token."""
    inside, late = flow.in_turn()
    levels, before = [int(number in inside) for number in range(len(flow.code))], [-1]
    while levels != before:
        before = [*levels]
        for number, used in enumerate(flow.uses):
            turn = number in inside
            least = [levels[one] + (levels[one] % 2 != turn) for one in used]
            levels[number] = max([levels[number], *least])
        for loop in flow.loops:
            for number in loop:
                levels[number] = max(levels[one] for one in loop)
    for number in reversed(range(len(levels))):
        if number in late:
            levels[number] = min(levels[user] for user in flow.users[number])
    return levels
