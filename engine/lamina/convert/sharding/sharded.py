"""Slices of a conversion for several ranks: tensor parallelism, and optionally expert parallelism."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod
from typing import TYPE_CHECKING, get_args

import torch
from torch import Tensor

from lamina.convert.codegen import slice_source
from lamina.convert.constants import BoundConstants, Constant, weight_name
from lamina.convert.errors import ConversionError
from lamina.convert.fuse import Fusing
from lamina.convert.graphs import Around, graphed
from lamina.convert.packing import packs
from lamina.convert.program import COLLECTIVE, RANK, Collective, Name, Spec
from lamina.convert.sharding.experts import experts_of
from lamina.convert.sharding.places import Kind, WeightPart
from lamina.convert.sharding.program import ShardedProgram, shard_program
from lamina.convert.sliced import SlicedModel, selected
from lamina.convert.slices import BoundSlice, SliceClass, bind_python, tensors_by_name
from lamina.operators import AttentionOp, Experts

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Sharing:
    """The distribution of weights over ranks, and the collectives they call."""

    weights: dict[str, list[str]]  # names by how they are split: columns, rows, first, experts, whole
    weight_bytes: int
    rank_weight_bytes: int  # of the rank with the most
    collectives: tuple[tuple[tuple[int, ...], dict[str, list[str]]], ...]  # by class of slices, then part


@dataclass(frozen=True)
class Sharded:
    """A conversion for `degree` ranks, which run the same code on shares of heads and weights."""

    whole: SlicedModel
    degree: int
    attentions: tuple[AttentionOp, ...]  # for one rank's attention workers
    classes: tuple[SliceClass, ...] = field(repr=False)
    programs: tuple[ShardedProgram, ...] = field(repr=False)  # by class

    def heads_of(self, rank: int, layer: int = 0) -> range:
        """Return the query heads of a rank."""
        return self._part(rank, self.attentions[layer].heads)

    def kv_heads_of(self, rank: int, layer: int = 0) -> range:
        """Return the key/value heads of a rank; a single one is on all ranks."""
        alone = self.whole.attentions[layer].kv_heads == 1
        return self._part(0 if alone else rank, self.attentions[layer].kv_heads)

    def compile(self) -> None:
        """Compile what ranks share, so that processes forked later have it."""
        for kind in self.classes:
            _ = kind.bind

    def bind(
        self,
        tensors: Mapping[str, Tensor] | PreTrainedModel,
        rank: int,
        collective: Collective | None,
        backend: str = "python",
        device: torch.device | str = "cpu",
        *,
        q_first: bool = True,
        only: range | None = None,
    ) -> list[BoundSlice]:
        """Return one rank's slices with weights, like SlicedModel.bind.

        `tensors` are those of the full model; split weights are copied. One rank needs no collective.
        """
        self._part(rank, 1)
        if self.degree == 1:
            return self.whole.bind(tensors, backend, device, q_first=q_first, only=only)
        place = self.whole.place_for(backend, device)
        if backend == "aot":
            raise ConversionError(
                "convert-shard-backend",
                f"the backend {backend!r} cannot run slices split over {self.degree} ranks, which talk to "
                "each other in the middle; choose python",
            )
        if collective is None:
            raise ConversionError(
                "convert-no-collective", f"{self.degree} ranks need a collective to sum with"
            )
        whole_names = {name for name, part in self._weight_parts() if part.kind == "whole"}
        given = tensors_by_name(tensors)
        weights = _RankWeights(self.whole.constants, given, place, rank, self.degree, whole_names)
        fusing = Fusing(merge=packs(), join=not q_first) if backend == "python" else None
        known = {RANK: rank, COLLECTIVE: collective}
        bound: list[BoundSlice] = []
        for piece in selected(self.whole.slices, only):
            program, kind = self.programs[piece.class_index], self.classes[piece.class_index]
            taken = [
                weights.take(name, part) for name, part in zip(piece.weights, program.weights, strict=True)
            ]
            extras = [known[name] for name in program.program.bound]
            bound.append(bind_python(kind, piece.index, taken, place, extras, fusing))
        return self.graphed(bound, place) if backend == "cudagraph" else bound

    def graphed(
        self,
        bound: Sequence[BoundSlice],
        device: torch.device,
        capturing: Around = contextlib.nullcontext,
    ) -> list[BoundSlice]:
        """Convert slices of "python" to those of "cudagraph"; both can be used. Captures are within
        `capturing`.
        """
        self.whole.place_for("cudagraph", device)
        kinds = [piece.class_index for piece in self.whole.slices]
        programs = [self.programs[kinds[one.index]].program for one in bound]
        return [
            graphed(one, program, device, capturing) for one, program in zip(bound, programs, strict=True)
        ]

    def describe(self) -> Sharing:
        """Return how weights are split and which collectives the ranks call.

        A weight split by "columns" has its outputs distributed, by "rows" its inputs; a "first" one is on
        rank 0 and zeros on others; "experts" are distributed; "whole" ones are on every rank.
        """
        split: dict[str, list[str]] = {kind: [] for kind in get_args(Kind)}
        total = own_bytes = 0
        whole_names = {name for name, part in self._weight_parts() if part.kind == "whole"}
        specs = self._specs()
        for name, part in self._weight_parts():
            split[part.kind].append(weight_name(self.whole.constants, name))
            total += 0 if name in whole_names and part.kind != "whole" else _bytes(specs[name])
            # A share of the rows of a weight that the rank has in full costs nothing.
            shared = name in whole_names and part.dim == 0 and len(part.blocks) == 1
            own_bytes += 0 if shared else _bytes(part.local(specs[name], self.degree))
        return Sharing(
            split,
            total,
            own_bytes,
            tuple(
                (kind.members, program.collectives)
                for kind, program in zip(self.classes, self.programs, strict=True)
            ),
        )

    def _weight_parts(self) -> list[tuple[Name, WeightPart]]:
        """Return every constant of the model with a rank's part of it, without duplicates."""
        return list(
            dict.fromkeys(
                part_of
                for piece in self.whole.slices
                for part_of in zip(piece.weights, self.programs[piece.class_index].weights, strict=True)
            )
        )

    def _specs(self) -> dict[Name, Spec]:
        """Return every constant's spec."""
        return {
            name: value.spec
            for piece in self.whole.slices
            for name, value in zip(piece.weights, piece.program.weights, strict=True)
        }

    def _part(self, rank: int, size: int) -> range:
        if not 0 <= rank < self.degree:
            raise ConversionError(
                "convert-shard-rank", f"there is no rank {rank} of {self.degree}; ranks count from 0"
            )
        return range(rank * size, (rank + 1) * size)


def shard(whole: SlicedModel, degree: int, experts: Experts = "tp") -> Sharded:
    """Split a conversion's slices over `degree` ranks; a ConversionError lists the possible degrees."""
    _check_degree(whole, degree)
    if whole.states and degree > 1:
        raise ConversionError(
            "convert-shard-state",
            f"layers that keep state between tokens are not split over ranks (layer "
            f"{whole.states[0].layer} does): one rank a replica",
        )
    if degree == 1:
        programs = tuple(_unsplit(kind) for kind in whole.classes)
        return Sharded(whole, 1, whole.attentions, whole.classes, programs)
    programs = tuple(shard_program(kind.program, degree, experts) for kind in whole.classes)
    if experts == "ep" and not any(part.kind == "experts" for one in programs for part in one.weights):
        raise ConversionError(
            "convert-no-experts", 'this model has no experts to distribute over ranks: leave out experts "ep"'
        )
    classes = tuple(
        SliceClass(kind.index, sharded.program, slice_source(sharded.program), kind.members)
        for kind, sharded in zip(whole.classes, programs, strict=True)
    )
    attentions = tuple(
        replace(op, heads=op.heads // degree, kv_heads=-(-op.kv_heads // degree)) for op in whole.attentions
    )
    return Sharded(whole, degree, attentions, classes, programs)


def _bytes(spec: Spec) -> int:
    return prod(spec.row_shape) * spec.dtype.itemsize


def _unsplit(kind: SliceClass) -> ShardedProgram:
    parts = tuple(WeightPart("whole") for _ in kind.program.weights)
    return ShardedProgram(kind.program, parts, {piece.name: [] for piece in kind.program.pieces})


def _check_degree(whole: SlicedModel, degree: int) -> None:
    shared = gcd(*(op.shared_heads for op in whole.attentions))
    possible = [number for number in range(1, shared + 1) if shared % number == 0]
    if degree not in possible:
        fewest = min(op.kv_heads for op in whole.attentions)
        heads = f"{fewest} KV heads" if fewest > 1 else f"{shared} heads"
        ranks = " or ".join(filter(None, [", ".join(map(str, possible[:-1])), str(possible[-1])]))
        raise ConversionError(
            "convert-shard-degree",
            f"{degree} ranks cannot share a model with {heads} evenly; its slices can be split "
            f"over {ranks} rank{'s' if possible != [1] else ''}",
        )


class _RankWeights:
    """One rank's weights, each made once for all slices.

    A share has memory of its own, so that the full weight can be freed. An unsplit weight is the caller's
    tensor unless that is a view of a larger one.
    """

    def __init__(
        self,
        constants: Mapping[Name, Constant],
        tensors: Mapping[str, Tensor],
        device: torch.device,
        rank: int,
        degree: int,
        whole: set[Name],
    ) -> None:
        self._constants, self._tensors, self._device = constants, tensors, device
        self._rank, self._degree = rank, degree
        self._whole = whole  # names of weights that some slice needs in full
        self._made: dict[tuple[Name, WeightPart], Tensor] = {}

    def take(self, name: Name, part: WeightPart) -> Tensor:
        """Return this rank's part of a constant."""
        key = (name, part)
        if key not in self._made:
            self._made[key] = self._make(name, part)
        return self._made[key]

    def _make(self, name: Name, part: WeightPart) -> Tensor:
        if part.kind == "whole":
            whole = self._whole_tensor(name)
            return whole if whole.untyped_storage().nbytes() <= whole.nbytes else whole.clone()
        if part.kind == "experts":
            whole = self._whole_tensor(name)
            own = experts_of(self._rank, self._degree, len(whole))
            return whole[own.start : own.stop].clone()
        if part.kind == "first":
            whole = self._whole_tensor(name)
            return whole.clone() if self._rank == 0 else torch.zeros_like(whole)
        if name in self._whole and part.dim == 0 and len(part.blocks) == 1:
            # Tied embeddings: the last product's share is rows of the full table.
            return self._share(self.take(name, WeightPart("whole")), part)
        return self._share(self._whole_tensor(name), part).clone()

    def _share(self, whole: Tensor, part: WeightPart) -> Tensor:
        shares: list[Tensor] = []
        start = 0
        for block in part.blocks:
            size = block // self._degree
            shares.append(whole.narrow(part.dim, start + self._rank * size, size))
            start += block
        return shares[0] if len(shares) == 1 else torch.cat(shares, part.dim)

    def _whole_tensor(self, name: Name) -> Tensor:
        # Not cached: a full weight, moved or computed, must not outlive its share.
        tensor: Tensor = BoundConstants(self._constants, self._tensors, self._device)[name]
        return tensor
