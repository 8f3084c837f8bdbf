"""Tensor parallelism: the slices of a conversion for several ranks, which share every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd, prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lamina.convert.bind import BoundSlice, bind_python, tensors_by_name, usable
from lamina.convert.classes import SliceClass
from lamina.convert.codegen import slice_source
from lamina.convert.describe import weight_name
from lamina.convert.errors import ConversionError
from lamina.convert.program import Name
from lamina.convert.shard_collective import COLLECTIVE, RANK, Collective
from lamina.convert.shard_places import WeightPart
from lamina.convert.shard_program import ShardedProgram, shard_program
from lamina.convert.shard_weights import RankWeights

if TYPE_CHECKING:
    from lamina.convert.conversion import Conversion
    from lamina.operators import AttentionOp


@dataclass(frozen=True)
class Sharded:
    """A conversion for `degree` ranks: they run the same code on shares of heads and weights."""

    conversion: Conversion
    degree: int
    attentions: tuple[AttentionOp, ...]  # as one rank's attention workers see them
    classes: tuple[SliceClass, ...] = field(repr=False)
    programs: tuple[ShardedProgram, ...] = field(repr=False)  # of each class

    def heads_of(self, rank: int, layer: int = 0) -> range:
        """The query heads of a rank."""
        return self._part(rank, self.attentions[layer].heads)

    def kv_heads_of(self, rank: int, layer: int = 0) -> range:
        """The key/value heads of a rank."""
        return self._part(rank, self.attentions[layer].kv_heads)

    def compile(self) -> None:
        """Make ready what ranks have in common, so that processes forked later find it."""
        for kind in self.classes:
            _ = kind.bind

    def bind(
        self,
        tensors: Mapping[str, Tensor] | PreTrainedModel,
        rank: int,
        collective: Collective | None,
        backend: str = "python",
        device: torch.device | str = "cpu",
    ) -> list[BoundSlice]:
        """The slices of one rank, as Conversion.bind gives those of all.

        Tensors are the whole model's; what is split is copied. With one rank, no collective is needed.
        """
        self._part(rank, 1)
        if self.degree == 1:
            return self.conversion.bind(tensors, backend, device)
        if backend != "python":
            raise ConversionError(
                "convert-shard-backend",
                f"the backend {backend!r} cannot run slices split over {self.degree} ranks, which talk to "
                "each other in the middle; choose python",
            )
        if collective is None:
            raise ConversionError(
                "convert-no-collective", f"{self.degree} ranks need a collective to sum with"
            )
        whole = {name for name, part in self._held() if part.kind == "whole"}
        given, place = tensors_by_name(tensors), usable(device)
        weights = RankWeights(self.conversion.constants, given, place, rank, self.degree, whole)
        known = {RANK: rank, COLLECTIVE: collective}
        bound: list[BoundSlice] = []
        for piece in self.conversion.slices:
            program, kind = self.programs[piece.class_index], self.classes[piece.class_index]
            taken = [
                weights.take(name, part) for name, part in zip(piece.weights, program.weights, strict=True)
            ]
            extras = [known[name] for name in program.program.bound]
            bound.append(bind_python(kind, piece.index, taken, place, extras))
        return bound

    def describe(self) -> dict[str, Any]:
        """What is split and how, and what ranks say to each other, ready for JSON.

        A weight split by "columns" has its outputs shared out, by "rows" what it sums over; of a "first" one
        rank 0 has all and the others zeros; "whole" ones are on every rank.
        """
        conversion = self.conversion
        split: dict[str, list[str]] = {"columns": [], "rows": [], "first": [], "whole": []}
        total = mine = 0
        kept = {name for name, part in self._held() if part.kind == "whole"}
        specs = self._specs()
        for name, part in self._held():
            split[part.kind].append(weight_name(conversion, name))
            total += 0 if name in kept and part.kind != "whole" else specs[name]
            # A share of the rows of what is there anyway costs nothing.
            shared = name in kept and part.dim == 0 and len(part.blocks) == 1
            mine += 0 if shared else specs[name] // (self.degree if part.blocks else 1)
        return {
            "degree": self.degree,
            "heads": [op.heads for op in self.attentions],
            "kv_heads": [op.kv_heads for op in self.attentions],
            "weights": split,
            "weight_bytes": total,
            "weight_bytes_of_a_rank": mine,
            "collectives": [
                {"slices": list(kind.members), **program.collectives}
                for kind, program in zip(self.classes, self.programs, strict=True)
            ],
        }

    def _held(self) -> list[tuple[Name, WeightPart]]:
        """Every constant of the model with what a rank holds of it, each once."""
        return list(
            dict.fromkeys(
                held
                for piece in self.conversion.slices
                for held in zip(piece.weights, self.programs[piece.class_index].weights, strict=True)
            )
        )

    def _specs(self) -> dict[Name, int]:
        """Bytes of every constant."""
        return {
            name: prod(value.spec.row_shape) * value.spec.dtype.itemsize
            for piece in self.conversion.slices
            for name, value in zip(piece.weights, piece.program.weights, strict=True)
        }

    def _part(self, rank: int, size: int) -> range:
        if not 0 <= rank < self.degree:
            raise ConversionError(
                "convert-shard-rank", f"there is no rank {rank} of {self.degree}; ranks count from 0"
            )
        return range(rank * size, (rank + 1) * size)


def shard(conversion: Conversion, degree: int) -> Sharded:
    """Split a conversion's slices over `degree` ranks; a ConversionError says which degrees there are."""
    _check_degree(conversion, degree)
    if degree == 1:
        whole = tuple(_unsplit(kind) for kind in conversion.classes)
        return Sharded(conversion, 1, conversion.attentions, conversion.classes, whole)
    programs = tuple(shard_program(kind.program, degree) for kind in conversion.classes)
    classes = tuple(
        SliceClass(kind.index, sharded.program, slice_source(sharded.program), kind.members)
        for kind, sharded in zip(conversion.classes, programs, strict=True)
    )
    attentions = tuple(
        replace(op, heads=op.heads // degree, kv_heads=op.kv_heads // degree) for op in conversion.attentions
    )
    return Sharded(conversion, degree, attentions, classes, programs)


def _unsplit(kind: SliceClass) -> ShardedProgram:
    parts = tuple(WeightPart("whole") for _ in kind.program.weights)
    return ShardedProgram(kind.program, parts, {piece.name: [] for piece in kind.program.pieces})


def _check_degree(conversion: Conversion, degree: int) -> None:
    heads = gcd(*(number for op in conversion.attentions for number in (op.heads, op.kv_heads)))
    possible = [number for number in range(1, heads + 1) if heads % number == 0]
    if degree not in possible:
        fewest = min(op.kv_heads for op in conversion.attentions)
        ranks = " or ".join(filter(None, [", ".join(map(str, possible[:-1])), str(possible[-1])]))
        raise ConversionError(
            "convert-shard-degree",
            f"{degree} ranks cannot share a model with {fewest} KV heads evenly; its slices can be split "
            f"over {ranks} rank{'s' if possible != [1] else ''}",
        )
