"""One rank's program of a slice: as much split as possible, with few collectives.

Every product with a weight is first split by columns, and the consequences are propagated through the
program. Products whose split leads to a conflict are not split, or split in other blocks, until no conflict
remains. Sums over ranks are delayed until an operator needs the sum.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from lamina.convert.program import (
    COLLECTIVE,
    RANK,
    Collective,
    Instruction,
    Name,
    Piece,
    Program,
    Spec,
    Value,
    make_spec,
    own_part,
    with_names,
)
from lamina.convert.sharding.experts import Routing, among_all
from lamina.convert.sharding.places import (
    PARTIAL,
    WHOLE,
    ConflictError,
    Partial,
    Place,
    Routed,
    Split,
    WeightPart,
    Whole,
    unsplit,
)
from lamina.convert.sharding.rules import Choices, multiply, pass_on, product_of
from lamina.operators import Experts

_aten = torch.ops.aten


@dataclass(frozen=True)
class ShardedProgram:
    """A slice's program for each rank; ranks differ only in the values of weights and `rank`."""

    program: Program
    weights: tuple[WeightPart, ...]  # in the program's order
    collectives: dict[str, list[str]]  # of each piece, in order


def shard_program(program: Program, degree: int, experts: Experts = "tp") -> ShardedProgram:
    """Split a slice's program over `degree` ranks; experts are split like other weights, or distributed."""
    choices = Choices()
    while True:
        try:
            return Rewriting(program, degree, choices, experts).run()
        except ConflictError as conflict:
            choices.learn(conflict, None if program.attended is None else program.attended.name)


class Rewriting:
    """One pass over a program with given choices of what is split."""

    def __init__(self, program: Program, degree: int, choices: Choices, experts: Experts) -> None:
        self.degree = degree
        self._routing = Routing(self) if experts == "ep" else None
        self._program, self._choices = program, choices
        self._places: dict[Name, Place | tuple[Place, ...]] = {}
        self._weights: dict[Name, tuple[WeightPart, frozenset[tuple[Name, Fraction]]]] = {}
        self._of_weights = {value.name for value in program.weights}
        self._assigned: set[Name] = set()
        self._now: dict[Name, Name] = {}  # current names of values that were summed or gathered
        self._specs: dict[Name, Spec] = {}
        self._code: list[Instruction] = []
        self._counts: Counter[str] = Counter()
        self._uses = Counter(
            name
            for piece in program.pieces
            for names in (*(one.uses() for one in piece.instructions), piece.gives)
            for name in names
        )

    def run(self) -> ShardedProgram:
        program = self._program
        for value in program.context:
            self._specs[value.name] = value.spec
        attended = self._receive(program.attended) if program.attended else None
        pieces: list[Piece] = []
        for piece in program.pieces:
            for one in piece.instructions:
                self._write(one)
            gives = tuple(self._give(piece.name, name) for name in piece.gives)
            pieces.append(Piece(piece.name, tuple(self._code), gives))
            self._code = []
        used = {name for piece in pieces for one in piece.instructions for name in one.uses()}
        parts = tuple(self._part(value.name) for value in program.weights)
        weights = tuple(
            Value(value.name, part.local(value.spec, self.degree))
            for value, part in zip(program.weights, parts, strict=True)
        )
        self._specs.update({value.name: value.spec for value in weights})
        bound = tuple(name for name in (RANK, COLLECTIVE) if name in used)
        return ShardedProgram(
            Program(program.context, attended, weights, tuple(pieces), self._specs, bound),
            parts,
            {
                piece.name: [one.op_name for one in piece.instructions if COLLECTIVE in one.uses()]
                for piece in pieces
            },
        )

    def place(self, name: Name) -> Place:
        """Return a value's current place; weights that are used directly are not split."""
        if name in self._of_weights:
            return WHOLE
        place = self._places.get(name, WHOLE)
        assert not isinstance(place, tuple)
        return place

    def spec(self, name: Name) -> Spec:
        return self._program.specs[name]

    def is_weight(self, name: Name) -> bool:
        return name in self._of_weights

    def uses(self, name: Name) -> int:
        return self._uses[name]

    def settle(self, name: Name) -> None:
        """Sum a partial value over all ranks."""
        self._spread(name)
        if isinstance(self._places.get(name), Partial):
            self._now[name] = self.append(Collective.all_reduce, (COLLECTIVE, name), self.spec(name))
            self._places[name] = WHOLE

    def routed(self, name: Name) -> Routed | None:
        """Return a value's place if a rank has only the rows that its experts compute."""
        place = self._places.get(name)
        return place if isinstance(place, Routed) else None

    def _spread(self, name: Name) -> None:
        """Expand a value of a rank's rows to a summand of all rows."""
        if place := self.routed(name):
            self._now[name] = self.append(among_all, (name, place.rows), self.spec(name))
            self._places[name] = PARTIAL

    def distribute(self, table: Name) -> None:
        """Distribute a layer's experts over ranks."""
        self._assign(table, WeightPart("experts"), frozenset())

    def split_weight(self, name: Name, dim: int, split: Split, *, rows: bool = False) -> None:
        """Split a weight over ranks."""
        part = WeightPart("rows" if rows else "columns", dim, split.blocks)
        self._assign(name, part, split.origins)

    def add_once(self, bias: Name, split: Split) -> None:
        """Give rank 0 a bias of a sum over ranks, so that it counts once."""
        self._assign(bias, WeightPart("first"), split.origins)

    def _assign(self, name: Name, part: WeightPart, origins: frozenset[tuple[Name, Fraction]]) -> None:
        self._assigned.add(name)
        stored_part, before = self._weights.setdefault(name, (part, origins))
        if stored_part != part:  # a weight with two different uses is split for neither
            raise ConflictError({product: () for product, _ in origins | before})

    def _part(self, name: Name) -> WeightPart:
        return self._weights.get(name, (WeightPart("whole"), None))[0]

    def _receive(self, value: Value) -> Value:
        """Return a rank's part of `attended`; it is gathered immediately if it may not be split."""
        size = value.spec.dims[1]
        assert isinstance(size, int)
        split = Split(1, (size,), frozenset({(value.name, Fraction(1))}))
        local = Value(value.name, split.local(value.spec, self.degree))
        self._specs[value.name] = local.spec
        if self._choices.may_split(value.name):
            self._places[value.name] = split
            return local
        batch, heads, width = value.spec.dims
        assert isinstance(heads, int)
        assert isinstance(width, int)
        shapes = [heads // self.degree * width, heads * width]
        flat = [make_spec((batch, shape), value.spec.dtype) for shape in shapes]
        name = self.append(_aten.reshape.default, (value.name, [-1, shapes[0]]), flat[0])
        name = self.append(Collective.all_gather, (COLLECTIVE, name), flat[1])
        self._now[value.name] = self.append(_aten.reshape.default, (name, [-1, heads, width]), value.spec)
        return local

    def _write(self, one: Instruction) -> None:
        product = product_of(one, self)
        place: Place | tuple[Place, ...]
        args = one.args
        if self._routing and (routed := self._routing.apply(one)):
            place, args = routed
        else:
            for name in one.uses():
                self._spread(name)
            if one.op_name == "getitem" and isinstance(parts := self._places.get(one.args[0]), tuple):
                place = parts[one.args[1]]
            elif product is not None:
                place = multiply(one, product, self, self._choices)
            else:
                place, args = pass_on(one, self)
        spec = one.spec
        if isinstance(place, Split):
            assert spec is not None
            spec = place.local(spec, self.degree)
        for name in one.uses():
            if name in self._of_weights and name not in self._assigned:
                self._assign(name, WeightPart("whole"), frozenset())
        self._assigned.clear()
        self._places[one.result] = place
        if spec is not None:
            self._specs[one.result] = spec
        self._code.append(
            Instruction(one.result, one.op, self._renamed(args), self._renamed(one.kwargs), spec)
        )

    def _renamed(self, value: Any) -> Any:
        return with_names(value, lambda name: self._now.get(name, name))

    def append(self, op: Any, args: tuple[Any, ...], spec: Spec | None) -> Name:
        """Append an instruction that the original program does not have."""
        stem = getattr(op, "_opname", op.__name__)
        taken = self._program.specs.keys() | self._specs.keys()
        while True:
            self._counts[stem] += 1
            name = Name(f"{stem}_{self._counts[stem]}")
            if name not in taken:
                break
        self._code.append(Instruction(name, op, self._renamed(args), {}, spec))
        if spec is not None:
            self._specs[name] = spec
        return name

    def _give(self, piece: str, name: Name) -> Name:
        """Return the name of a piece's result: a rank's heads of q, k and v, everything else unsplit."""
        self.settle(name)
        place, spec = self.place(name), self.spec(name)
        sent = piece in {"query", "keyvalue"}
        if isinstance(place, Whole):
            heads = spec.dims[1] if sent else 1
            assert isinstance(heads, int)
            if heads == 1:  # all ranks send a single KV head
                return self._now.get(name, name)
            own = Split(1, (heads,), frozenset()).local(spec, self.degree)
            return self.append(own_part, (name, RANK, self.degree), own)
        assert isinstance(place, Split)
        if len(place.blocks) > 1 or place.dim != (1 if sent else len(spec.dims) - 1):
            raise unsplit([place])
        if sent:
            return name
        if piece == "rest":  # context is the same on all ranks
            raise unsplit([place])
        return self.append(Collective.all_gather, (COLLECTIVE, name), spec)
