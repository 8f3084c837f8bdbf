"""An editable program: instructions that can be replaced."""

from __future__ import annotations

from collections.abc import Iterable
from operator import getitem
from types import ModuleType
from typing import Any

from lamina.convert.program import Collective, Instruction, Name, Piece, Program, Spec, States

# Operators with side effects.
_DOES = (States.write, Collective.all_reduce, Collective.all_gather)


class Editor:
    """The instructions of all pieces, with the maker and users of each value."""

    def __init__(self, program: Program, kernels: ModuleType) -> None:
        """Index a program; `kernels` is the module of native operators for the device."""
        self.program, self.kernels = program, kernels
        self.code = [list(piece.instructions) for piece in program.pieces]
        self.specs = dict(program.specs)
        self.weights = {value.name: value.spec for value in program.weights}
        self.gives = {name for piece in program.pieces for name in piece.gives}
        self._index()

    def _index(self) -> None:
        self.made: dict[Name, Instruction] = {}
        self.piece_of: dict[Name, int] = {}
        self._users: dict[Name, list[Instruction]] = {}
        for number, code in enumerate(self.code):
            for one in code:
                self.made[one.result] = one
                self.piece_of[one.result] = number
                for name in dict.fromkeys(one.uses()):
                    self._users.setdefault(name, []).append(one)

    def maker(self, name: object, *ops: Any) -> Instruction | None:
        """Return the instruction that makes a value, if it is one of these operators."""
        one = self.made.get(name) if isinstance(name, Name) else None
        return one if one is not None and one.op in ops else None

    def users(self, name: Name) -> list[Instruction]:
        return self._users.get(name, [])

    def only_user(self, name: Name, *ops: Any) -> Instruction | None:
        """Return the only user of a value, if it is one of these operators."""
        users = self.users(name)
        return users[0] if len(users) == 1 and name not in self.gives and users[0].op in ops else None

    def spec(self, name: object) -> Spec | None:
        """Return the spec of a tensor; None for anything else."""
        return self.specs.get(name) if isinstance(name, Name) else None

    def fresh(self, stem: str) -> Name:
        number = 1
        while (name := Name(f"{stem}_{number}")) in self.made or name in self.specs:
            number += 1
        return name

    def replace(self, old: Instruction, new: Iterable[Instruction], drop: Iterable[Instruction] = ()) -> None:
        """Replace one instruction with others, and remove `drop`, whose results the new ones make."""
        number = self.piece_of[old.result]
        dropped = {one.result for one in drop}
        code = [one for one in self.code[number] if one.result not in dropped or one is old]
        at = code.index(old)
        code[at : at + 1] = new
        self.code[number] = code
        for one in code:
            if one.spec is not None:
                self.specs[one.result] = one.spec
        self._index()

    def members(self, pair: Name, results: Iterable[Instruction]) -> list[Instruction]:
        """Return instructions that take the members of a tuple, named as the results they replace."""
        return [
            Instruction(one.result, getitem, (pair, number), {}, one.spec)
            for number, one in enumerate(results)
        ]

    def drop_unused(self) -> None:
        live = set(self.gives)
        for number in reversed(range(len(self.code))):
            rest = []
            for one in reversed(self.code[number]):
                if one.result in live or one.op in _DOES:
                    rest.append(one)
                    live.update(one.uses())
            self.code[number] = rest[::-1]
        self._index()

    def join_first(self) -> None:
        """Merge the first two pieces, so that their products can be merged."""
        self.code[0] += self.code[1]
        self.code[1] = []
        self._index()

    def written(self, weights: Iterable[Any]) -> Program:
        """Return the edited program."""
        pieces = tuple(
            Piece(piece.name, tuple(code), piece.gives)
            for piece, code in zip(self.program.pieces, self.code, strict=True)
        )
        old = self.program
        return Program(old.context, old.attended, tuple(weights), pieces, self.specs, old.bound)
